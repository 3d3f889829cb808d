include(CMakeDependentOption)
include(CheckCXXCompilerFlag)
include(GNUInstallDirs)

option(TESSERA_NATIVE "Compile the kernels for the processor of this machine" ON)
option(TESSERA_WERROR "Treat warnings as errors" OFF)
option(TESSERA_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
set(TESSERA_CUDA AUTO CACHE STRING "Build the CUDA back end: AUTO (when nvcc is found), ON, OFF")
set_property(CACHE TESSERA_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TESSERA_CUDA_ARCHITECTURES 90 CACHE STRING "CUDA architectures to compile for")
set(TESSERA_SANITIZE "" CACHE STRING "Sanitizers for every target, e.g. address,undefined")

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)
  find_program(TESSERA_CCACHE ccache)
  mark_as_advanced(TESSERA_CCACHE)
  if(TESSERA_CCACHE)
    foreach(language IN ITEMS CXX CUDA)
      if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
        set(CMAKE_${language}_COMPILER_LAUNCHER "${TESSERA_CCACHE}")
      endif()
    endforeach()
  endif()
endif()

# nvcc is often installed outside PATH.
set(TESSERA_WITH_CUDA OFF)
if(NOT TESSERA_CUDA STREQUAL "OFF")
  find_program(TESSERA_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(TESSERA_NVCC)
  if(TESSERA_NVCC)
    set(TESSERA_WITH_CUDA ON)
  elseif(NOT TESSERA_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TESSERA_CUDA=${TESSERA_CUDA}, but nvcc was not found. Put it in PATH, set CUDA_HOME, or use "
                        "-DTESSERA_CUDA=OFF.")
  endif()
endif()

function(tessera_compile_options target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NATIVE" "" "")
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden
    CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
  set(warnings -Wall -Wextra -Wshadow -Wconversion)
  if(TESSERA_WERROR)
    list(APPEND warnings -Werror)
  endif()
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;--expt-relaxed-constexpr;-Xcompiler=-Wall>")
  if(arg_NATIVE AND TESSERA_NATIVE)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-march=native>")
  endif()
  if(TESSERA_SANITIZE)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TESSERA_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
    target_link_options(${target} PUBLIC -fsanitize=${TESSERA_SANITIZE})
  endif()
endfunction()
