# Compiler cache, linker, warnings and sanitizers, in one place.
find_program(DSV4_CCACHE ccache)
if(DSV4_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DSV4_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${DSV4_CCACHE})
else()
  # ccache hands the compiler paths relative to the build folder (CCACHE_BASEDIR). Without it, too, __FILE__ names no folder of this machine, so
  # that the same bytes come out of every clone.
  file(RELATIVE_PATH source_from_build ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR}/CMakeLists.txt)
  cmake_path(GET source_from_build PARENT_PATH source_from_build)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}=${source_from_build}>")
endif()

find_program(DSV4_MOLD mold)
if(DSV4_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# -ffp-contract=off: a fused multiply-add would skip a rounding the contracts name.
# -Wno-missing-field-initializers: designated initialisers leave out what keeps its default.
set(host_options -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror
    -Wno-missing-field-initializers -ffp-contract=off -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports false positives inside libstdc++ at -O2.
  list(APPEND host_options -Wno-restrict -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds
       -Wno-dangling-pointer)
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${host_options}>")

if(DSV4_SANITIZE)
  add_compile_options(-fsanitize=${DSV4_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${DSV4_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Behind a sanitizer's checks g++ knows less of values, and warns of code that is right. The plain presets have -Werror for the same code.
    add_compile_options(-Wno-error)
  endif()
  # The sanitizers' own variables are reached in ways that a shared object (a test's stand-in for NCCL) may not have.
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
endif()

# Coverage for libFuzzer in every module; only the fuzz targets link its main.
if(DSV4_BUILD_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
