#pragma once

#include <string>
#include <tessera/nn/data/grid_field.hpp>
#include <vector>

namespace tessera::app {

/// The loss by step and its running mean; `curves` holds steps and losses.
void draw_losses(const std::string& path, const std::vector<std::vector<double>>& curves);

/// A tile of a 2-D field: truth, prediction and bicubic interpolation, and the errors of both.
struct PredictionPicture {
  Box tile;  ///< in fine points
  std::vector<double> truth;
  std::vector<double> model;
  std::vector<double> bicubic;
};
void draw_prediction(const std::string& path,
                     const PredictionPicture& picture,
                     const data::GridField& field);

/// A forecast on a 2-D grid or a section of a volume, row-major, and what it corrects.
struct ForecastPicture {
  std::vector<double> truth;
  std::vector<double> model;
  std::vector<double> base;
  std::string base_name;
  std::string title;
};
void draw_forecast(const std::string& path,
                   const ForecastPicture& picture,
                   const data::GridField& field);

/// A whole 2-D field, row-major [rows, columns].
void draw_field(const std::string& path,
                const Shape& shape,
                const std::vector<double>& values,
                const std::string& title,
                const std::string& unit,
                bool first_row_below);

/// `units` of a variable, or "".
std::string unit_of(const io::FieldVariable& variable);

}  // namespace tessera::app
