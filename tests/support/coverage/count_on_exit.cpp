// Processes that end without exit() lose the counts of the lines that they ran. Calls of these
// functions come here (linker option --wrap) and keep them.

#include <mpi.h>

extern "C" {
void __gcov_dump();
[[noreturn]] void __real__exit(int code);
[[noreturn]] void __real_abort();
int __real_MPI_Abort(MPI_Comm comm, int code);

[[noreturn]] void __wrap__exit(int code) {
  __gcov_dump();
  __real__exit(code);
}
[[noreturn]] void __wrap_abort() {
  __gcov_dump();
  __real_abort();
}
int __wrap_MPI_Abort(MPI_Comm comm, int code) {
  __gcov_dump();
  return __real_MPI_Abort(comm, code);
}
}
