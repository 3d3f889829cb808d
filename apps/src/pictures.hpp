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

/// Whether a unit is degrees in the direction `way`, 'n'orth or 'e'ast (CF conventions 4.1, 4.2).
bool is_degrees(const std::string& unit, char way);
/// Whether coordinates of a dimension rise, or are not known.
bool ascending(const data::GridField& field, int dim);

/// Degrees north of rows and east of columns; both or none.
struct Degrees {
  std::vector<double> latitudes = {};
  std::vector<double> longitudes = {};
};
/// Those of the dimensions `rows_dim` and the next of a field, by their units; none where these are
/// others.
Degrees degrees_of(const data::GridField& field, int rows_dim);

/// A whole 2-D field, row-major [rows, columns].
struct WholeField {
  Shape shape;
  std::vector<double> values;
  std::string title;
  std::string unit;
  bool first_row_below = false;
  bool relief = false;  ///< heights, where they lie on both sides of 0
  Degrees degrees =
      {};  ///< of as many points or more: they are thinned; a map where they are known
};
void draw_field(const std::string& path, const WholeField& field);

/// `units` of a variable, or "".
std::string unit_of(const io::FieldVariable& variable);

/// Classes on planes through a volume.
struct SegmentPlane {
  std::string title;
  Shape size;                 ///< rows, columns; row 0 is drawn below
  std::vector<double> truth;  ///< empty: none, and no errors
  std::vector<double> model;
  std::vector<double> errors;  ///< 1: wrong, 0: right, NaN: not held out
};
void draw_segments(const std::string& path,
                   const std::vector<SegmentPlane>& planes,
                   std::int64_t classes);

}  // namespace tessera::app
