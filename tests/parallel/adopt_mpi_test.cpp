// ranks: 1 2
#include <mpi.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <tessera/parallel/communicator.hpp>

using namespace tessera;
using namespace tessera::parallel;

namespace {

// A program that starts and ends MPI itself.
struct OwnMpi {
  OwnMpi() { MPI_Init(nullptr, nullptr); }
  ~OwnMpi() {
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised != 0) {
      std::fprintf(stderr, "the Runtime has finalised an MPI that it had only adopted\n");
      std::_Exit(1);
    }
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
    if (handler != MPI_ERRORS_ARE_FATAL) {
      std::fprintf(stderr, "the Runtime has not restored the error handler\n");
      std::_Exit(1);
    }
    MPI_Finalize();
  }
};
const OwnMpi own_mpi;

}  // namespace

TEST_CASE("an initialised MPI is adopted, and left running") {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  REQUIRE(process().count == size);
  double x = 1;
  all_reduce(Group::world(), &x, 1, DType::kFloat64).wait();
  REQUIRE(x == size);
}
