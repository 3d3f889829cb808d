include("${CMAKE_CURRENT_LIST_DIR}/TesseraFindLibrary.cmake")
tessera_find_library(LZ4 TARGET lz4 HEADER lz4.h NAMES lz4)
