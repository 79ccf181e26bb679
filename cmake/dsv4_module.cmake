# dsv4_join(TARGET SOURCE...): with DSV4_JOINED, sources of the target that share no private name are compiled as one unit. So their
# includes are read once. Sources with options of their own, as kernels of one instruction set, stay alone.
function(dsv4_join target)
  if(NOT DSV4_JOINED)
    return()
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(sources ${ARGN})
  list(FILTER sources INCLUDE REGEX "^[^$]*\\.cc$")  # Neither device code nor objects.
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/joined_units.py 138000 ${sources}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${lines}")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^([0-9]+) (.+)$" line "${line}")
    set_source_files_properties(${CMAKE_MATCH_2} PROPERTIES UNITY_GROUP ${CMAKE_MATCH_1})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow>"
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>")  # Names of another file.
endfunction()

# dsv4_waits(TARGET...): code that waits for people, files and networks. At -O1 it compiles in three quarters of the time.
function(dsv4_waits)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>")
  endforeach()
endfunction()

# dsv4_module(NAME base [SOURCES a.cc b.cc] [DEPS tensor ...] [LIBS fmt::fmt ...])
#   One static library dsv4_<name> per folder. DEPS are other modules, LIBS are third-party targets or objects. Without SOURCES the library
#   stands for these.
#   The same edges are checked on #include lines by tools/check_includes.py.
function(dsv4_module)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS;LIBS" ${ARGN})
  set(target dsv4_${ARG_NAME})
  list(TRANSFORM ARG_DEPS PREPEND dsv4_)
  if(NOT ARG_SOURCES)
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${ARG_DEPS} ${ARG_LIBS})
    return()
  endif()
  add_library(${target} STATIC ${ARG_SOURCES})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} ${ARG_LIBS})
  dsv4_join(${target} ${ARG_SOURCES})
endfunction()

# Seconds of a suite of commands. With sanitizers every test has several times its own.
set(DSV4_TEST_SLOWER 1)
if(DSV4_SANITIZE)
  set(DSV4_TEST_SLOWER 4)
endif()
math(EXPR DSV4_TEST_SECONDS "${DSV4_TEST_SLOWER} * 900")

# dsv4_test(NAME tensor_test SOURCES shape_test.cc [DEPS tensor] [LIBS ...] [LABEL unit] [TIMEOUT 120])
#   One GTest binary, registered with CTest under LABEL; it runs in the source root so that fixtures are found.
function(dsv4_test)
  if(NOT DSV4_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME;LABEL;TIMEOUT" "SOURCES;DEPS;LIBS;ARGS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  math(EXPR ARG_TIMEOUT "${DSV4_TEST_SLOWER} * ${ARG_TIMEOUT}")
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_include_directories(${ARG_NAME} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  list(TRANSFORM ARG_DEPS PREPEND dsv4_)
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()
