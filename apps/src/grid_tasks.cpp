#include "grid_tasks.hpp"

namespace tessera::app {

const std::vector<GridTask>& grid_tasks() {
  static const std::vector<GridTask> all = {
      {"refine", complete_refine, open_refine, imitate_refine, evaluate_refine, predict_refine},
      {"forecast", complete_forecast, open_forecast_task, imitate_forecast, evaluate_forecast,
       predict_forecast},
      {"segment", complete_segment, open_segment_task, imitate_segment, evaluate_segment,
       predict_segment},
  };
  return all;
}

std::vector<EdgeRule> edges_of(const data::GridField& field) {
  std::vector<EdgeRule> edges;
  for (int d = 0; d < field.dims(); ++d) {
    edges.push_back(field.periodic(d) ? EdgeRule::kCircular : EdgeRule::kReplicate);
  }
  return edges;
}

}  // namespace tessera::app
