# Debian's own CMake package of oneDNN insists on OpenCL headers, which a CPU build does not need.
include("${CMAKE_CURRENT_LIST_DIR}/TesseraFindLibrary.cmake")
tessera_find_library(OneDNN TARGET dnnl HEADER dnnl.hpp NAMES dnnl)
