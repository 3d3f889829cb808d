// Random geometry that all processes of a job agree on.
#pragma once

#include <tessera/parallel/communicator.hpp>

#include "parallel/random_layout.hpp"

namespace tessera::test {

/// The same numbers on every process; process 0 prints the seed.
inline Random agreed_random(const char* what) {
  std::uint64_t seed = fresh_seed();
  parallel::broadcast(parallel::Group::world(), &seed, sizeof(seed), 0).wait();
  return Random(what, seed, process().rank == 0);
}

/// All processes of the job, sometimes in another order, on 1 to 3 axes.
inline Mesh random_world(Random& random) {
  std::vector<int> processes(static_cast<std::size_t>(process().count));
  std::iota(processes.begin(), processes.end(), 0);
  if (random.chance(0.3)) random.shuffle(processes);
  std::vector<MeshAxis> axes;
  int rest = process().count;
  for (const char* name : {"a", "b"}) {
    int size = random.number(1, rest);
    while (rest % size != 0) --size;
    axes.push_back({name, size});
    rest /= size;
  }
  axes.push_back({"c", rest});
  return Mesh::of(processes, axes);
}

}  // namespace tessera::test
