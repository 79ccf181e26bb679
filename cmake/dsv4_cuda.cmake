# The CUDA language, as src/backend/cuda wants it.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  # nvcc is often installed beside the PATH.
  find_program(DSV4_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(NOT DSV4_NVCC)
    message(FATAL_ERROR "preset cuda: no nvcc on the PATH or in /usr/local/cuda/bin; the CPU build needs none")
  endif()
  set(CMAKE_CUDA_COMPILER ${DSV4_NVCC})
endif()
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "preset cuda: nvcc is ${CMAKE_CUDA_COMPILER_VERSION}, want 13.0 or later")
endif()
# CMake 3.25 does not know that nvcc 13 speaks C++20 and drops the standard without a word.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
if(DSV4_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${DSV4_CCACHE})
endif()
# --fmad=false: a fused multiply-add would skip a rounding that the contracts name. Kernels fuse where they say fma.
# --expt-relaxed-constexpr: device code calls the constexpr conversions of formats/number_formats.h.
# 177: a constant that only device code of another instantiation uses.
# Source lines, for profilers, are most of an object's bytes. Objects of all GPUs since Ampere go without, and are packed as small as nvcc
# can. A sixteenth is left, which makes a wheel of them small enough. The driver unpacks a kernel's module when it is first launched.
option(DSV4_CUDA_SMALL "Device code without source lines, compressed for size" OFF)
if(DSV4_CUDA_SMALL)
  set(device_code --compress-mode=size)
else()
  set(device_code -lineinfo)
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;--expt-relaxed-constexpr;${device_code};-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter>")
