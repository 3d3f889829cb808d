include("${CMAKE_CURRENT_LIST_DIR}/TesseraFindLibrary.cmake")
tessera_find_library(HDF5Serial TARGET hdf5 HEADER hdf5.h NAMES hdf5_serial hdf5 INCLUDE_SUFFIXES hdf5/serial)
