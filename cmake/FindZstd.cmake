include("${CMAKE_CURRENT_LIST_DIR}/TesseraFindLibrary.cmake")
tessera_find_library(Zstd TARGET zstd HEADER zstd.h NAMES zstd)
