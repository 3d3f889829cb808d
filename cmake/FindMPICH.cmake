# Finds MPICH by name: on Debian, other packages may turn plain mpicxx and mpiexec into Open MPI's.
# Defines tessera::mpich (C interface only) and MPICH_MPIEXEC.
include(FindPackageHandleStandardArgs)

find_program(MPICH_COMPILER NAMES mpicxx.mpich mpicxx)
find_program(MPICH_MPIEXEC NAMES mpiexec.mpich mpiexec.hydra mpiexec)
set(_mpich_flags "")
if(MPICH_COMPILER)
  execute_process(COMMAND "${MPICH_COMPILER}" -show OUTPUT_VARIABLE _mpich_flags ERROR_QUIET)
endif()
string(REGEX MATCHALL "-I[^ \n]+" _mpich_includes "${_mpich_flags}")
string(REGEX MATCHALL "-L[^ \n]+" _mpich_libs "${_mpich_flags}")
list(TRANSFORM _mpich_includes REPLACE "^-I" "")
list(TRANSFORM _mpich_libs REPLACE "^-L" "")
find_path(MPICH_INCLUDE_DIR mpi.h HINTS ${_mpich_includes} PATH_SUFFIXES mpich)
find_library(MPICH_LIBRARY NAMES mpich HINTS ${_mpich_libs} PATH_SUFFIXES mpich/lib)
mark_as_advanced(MPICH_COMPILER MPICH_INCLUDE_DIR MPICH_LIBRARY)

set(MPICH_VERSION "")
if(MPICH_INCLUDE_DIR)
  file(STRINGS "${MPICH_INCLUDE_DIR}/mpi.h" _mpich_line REGEX "^#define MPICH_VERSION ")
  string(REGEX MATCH "[0-9]+[.0-9]*" MPICH_VERSION "${_mpich_line}")
endif()
set(_mpich_advice "Install MPICH (Debian: apt-get install mpich libmpich-dev, or scripts/setup), or set MPICH_COMPILER to its mpicxx.")
if(MPICH_INCLUDE_DIR AND NOT MPICH_VERSION)
  set(_mpich_advice "${MPICH_INCLUDE_DIR}/mpi.h belongs to another MPI (Open MPI?). ${_mpich_advice}")
elseif(MPICH_MPIEXEC)
  execute_process(COMMAND "${MPICH_MPIEXEC}" --version OUTPUT_VARIABLE _mpich_launcher ERROR_VARIABLE _mpich_launcher)
  if(NOT _mpich_launcher MATCHES "HYDRA")
    set(_mpich_advice "${MPICH_MPIEXEC} belongs to another MPI (Open MPI?). ${_mpich_advice}")
    set(MPICH_VERSION "")
  endif()
endif()

find_package_handle_standard_args(MPICH
  REQUIRED_VARS MPICH_LIBRARY MPICH_INCLUDE_DIR MPICH_MPIEXEC MPICH_VERSION VERSION_VAR MPICH_VERSION
  REASON_FAILURE_MESSAGE "${_mpich_advice}")
if(MPICH_FOUND AND NOT TARGET tessera::mpich)
  add_library(tessera::mpich UNKNOWN IMPORTED)
  set_target_properties(tessera::mpich PROPERTIES
    IMPORTED_LOCATION "${MPICH_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${MPICH_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS "MPICH_SKIP_MPICXX=1")
endif()
