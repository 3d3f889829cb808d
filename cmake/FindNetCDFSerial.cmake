include("${CMAKE_CURRENT_LIST_DIR}/TesseraFindLibrary.cmake")
tessera_find_library(NetCDFSerial TARGET netcdf HEADER netcdf.h NAMES netcdf)
