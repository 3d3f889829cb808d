// ranks: 1
// Maps: coasts and degrees lie where latitudes and longitudes say.
#include <catch2/catch.hpp>
#include <tessera/core/error.hpp>
#include <tessera/nn/io/plot.hpp>

using namespace tessera;

namespace {

constexpr int kLeft = 42, kTop = 32;  // of the field in a picture of one panel

struct Map {
  std::vector<double> latitudes, longitudes;
  bool below = true;
  int pixels = 1;  // of a point

  io::Image draw(bool coastlines = true) const {
    std::vector<double> values(latitudes.size() * longitudes.size(), 1.0);
    const Shape shape{std::ssize(latitudes), std::ssize(longitudes)};
    const View view = View::dense(values.data(), DType::kFloat64, shape);
    return io::draw_fields({{.values = view,
                             .low = 0.0,
                             .high = 1.0,
                             .first_row_below = below,
                             .latitudes = latitudes,
                             .longitudes = longitudes,
                             .coastlines = coastlines}},
                           {.columns = 1, .min_width = static_cast<int>(shape[1]) * pixels});
  }
  /// Whether some pixel within `reach` degrees of a place is dark.
  bool coast_near(const io::Image& image, double lat, double lon, double reach) const {
    const auto rows = static_cast<int>(latitudes.size()),
               columns = static_cast<int>(longitudes.size());
    for (int y = 0; y < rows * pixels; ++y) {
      for (int x = 0; x < columns * pixels; ++x) {
        const int row = below ? rows - 1 - y / pixels : y / pixels;
        const double dlat = latitudes[static_cast<std::size_t>(row)] - lat;
        double dlon = longitudes[static_cast<std::size_t>(x / pixels)] - lon;
        dlon -= 360.0 * std::round(dlon / 360.0);
        const io::Color c = image.at(kLeft + x, kTop + y);
        if (std::abs(dlat) < reach && std::abs(dlon) < reach && c.r + c.g + c.b < 250) return true;
      }
    }
    return false;
  }
};

std::vector<double> steps(double from, double step, int count) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(from + step * i);
  return values;
}

}  // namespace

TEST_CASE("coasts lie where they are, whichever way latitudes and longitudes run") {
  const Map maps[] = {{steps(-89.5, 1.0, 180), steps(0.5, 1.0, 360)},
                      {steps(89.5, -1.0, 180), steps(-179.5, 1.0, 360), false},
                      {steps(-88, 2.0, 89), steps(359, -2.0, 180), true, 3},
                      {steps(89.5, -1.0, 180), steps(20.5, 1.0, 360), false}};
  for (const Map& map : maps) {
    const io::Image image = map.draw();
    // Capes: Agulhas, Comorin, Finisterre, Leeuwin; the corner of Brazil.
    for (const auto& [lat, lon] : std::initializer_list<std::pair<double, double>>{
             {-34.8, 20.0}, {8.1, 77.5}, {43.0, -9.2}, {-34.3, 115.1}, {-7.0, -34.9}})
      CHECK(map.coast_near(image, lat, lon, 2.1));
    // The middle of the Pacific, the Indian ocean, the Sahara, Siberia, the Atlantic.
    for (const auto& [lat, lon] : std::initializer_list<std::pair<double, double>>{
             {-30, -120}, {-25, 80}, {23, 10}, {62, 100}, {30, -45}})
      CHECK_FALSE(map.coast_near(image, lat, lon, 5.0));
    CHECK_FALSE(map.coast_near(map.draw(false), -34.8, 20.0, 3.0));
  }
  // Longitudes that jump from 359 to 0 go on.
  Map jump = {steps(30, 1.0, 30), steps(340, 1.0, 40)};
  for (double& lon : jump.longitudes)
    if (lon >= 360) lon -= 360;
  const io::Image image = jump.draw();
  CHECK(jump.coast_near(image, 43.0, -9.2, 2.0));
  CHECK(jump.coast_near(image, 40.9, 14.2, 2.0));  // Naples
  CHECK_FALSE(jump.coast_near(image, 47.0, 2.0, 2.0));
}

TEST_CASE("degrees stand around a map, and nowhere else") {
  const Map map = {steps(-89.5, 1.0, 180), steps(0.5, 1.0, 360)};
  const io::Image image = map.draw();
  const auto tick = [&](double lon) {
    return image.at(kLeft + static_cast<int>(lon), kTop + 180 + 2) == io::kBlack;
  };
  for (int lon = 1; lon < 359; ++lon) {
    INFO(lon);
    CHECK(tick(lon) == (lon % 60 == 0));
  }
  for (int lat = -89; lat < 90; ++lat) {
    INFO(lat);
    CHECK((image.at(kLeft - 3, kTop + 90 - lat) == io::kBlack) == (lat % 30 == 0));
  }
  // One column, one row, regions without a round degree.
  CHECK_NOTHROW(Map{{1.5}, {2.5}}.draw());
  CHECK_NOTHROW(Map{steps(51.001, 0.001, 20), steps(7.101, 0.002, 30)}.draw());
  Map wrong = map;
  wrong.latitudes.pop_back();
  std::vector<double> values(180 * 360, 0.0);
  CHECK_THROWS_AS(
      io::draw_fields({{.values = View::dense(values.data(), DType::kFloat64, {180, 360}),
                        .latitudes = wrong.latitudes,
                        .longitudes = wrong.longitudes}}),
      ShapeError);
}
