include("${CMAKE_CURRENT_LIST_DIR}/TesseraFindLibrary.cmake")
tessera_find_library(Blosc TARGET blosc HEADER blosc.h NAMES blosc)
