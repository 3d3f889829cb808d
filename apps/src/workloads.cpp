#include "workloads.hpp"

namespace tessera::app {

const std::vector<WorkloadEntry>& workloads() {
  static const std::vector<WorkloadEntry> all = {
      {"unet", "The U-Net of `train unet`.",
       "Points of the field (the output) in each dimension, e.g. 512x512; what --crop is in "
       "training.",
       unet_workload},
  };
  return all;
}

}  // namespace tessera::app
