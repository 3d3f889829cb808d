include("${CMAKE_CURRENT_LIST_DIR}/TesseraFindLibrary.cmake")
tessera_find_library(NCCL TARGET nccl HEADER nccl.h NAMES nccl HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_DIR})
