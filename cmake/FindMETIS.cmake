include("${CMAKE_CURRENT_LIST_DIR}/TesseraFindLibrary.cmake")
tessera_find_library(METIS TARGET metis HEADER metis.h NAMES metis)
