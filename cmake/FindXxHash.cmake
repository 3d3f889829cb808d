include("${CMAKE_CURRENT_LIST_DIR}/TesseraFindLibrary.cmake")
tessera_find_library(XxHash TARGET xxhash HEADER xxhash.h NAMES xxhash)
