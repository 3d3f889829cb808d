# The "noblas" library resolves the BLAS symbols that libxsmm's fall-backs name; Tessera never takes those paths.
include("${CMAKE_CURRENT_LIST_DIR}/TesseraFindLibrary.cmake")
find_library(Libxsmm_NOBLAS_LIBRARY NAMES xsmmnoblas)
mark_as_advanced(Libxsmm_NOBLAS_LIBRARY)
find_package(Threads REQUIRED)
tessera_find_library(Libxsmm TARGET xsmm HEADER libxsmm.h NAMES xsmm
                     LINK ${Libxsmm_NOBLAS_LIBRARY} Threads::Threads ${CMAKE_DL_LIBS} m)
