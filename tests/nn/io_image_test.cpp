// ranks: 1
#include <png.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/nn/io/plot.hpp>

#include "io_support.hpp"

using namespace tessera;
using io::Color;
using io::ColorMap;
using io::Image;
using tessera::test::TempDir;

namespace {

struct Decoded {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgb;
  Color at(int x, int y) const {
    const auto i = static_cast<std::size_t>(3 * (y * width + x));
    return {rgb[i], rgb[i + 1], rgb[i + 2]};
  }
};

Decoded decode(const std::string& path) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  REQUIRE(png_image_begin_read_from_file(&png, path.c_str()));
  png.format = PNG_FORMAT_RGB;
  Decoded d{static_cast<int>(png.width), static_cast<int>(png.height), {}};
  d.rgb.resize(PNG_IMAGE_SIZE(png));
  REQUIRE(png_image_finish_read(&png, nullptr, d.rgb.data(), 0, nullptr));
  return d;
}

int count(const Image& image, Color color) {
  int n = 0;
  for (int y = 0; y < image.height(); ++y)
    for (int x = 0; x < image.width(); ++x) n += image.at(x, y) == color;
  return n;
}

View view_of(std::vector<float>& values, const Shape& shape) {
  return View::dense(values.data(), DType::kFloat32, shape);
}

}  // namespace

TEST_CASE("a saved picture is read back pixel by pixel") {
  const TempDir dir;
  Image image(37, 23, {1, 2, 3});
  for (int i = 0; i < 23; ++i) image.set(i, i, {static_cast<std::uint8_t>(i * 11), 200, 7});
  image.save(dir / "a.png");
  CHECK(dir.list() == std::vector<std::string>{"a.png"});
  const Decoded d = decode(dir / "a.png");
  REQUIRE(d.width == 37);
  REQUIRE(d.height == 23);
  for (int y = 0; y < 23; ++y)
    for (int x = 0; x < 37; ++x) REQUIRE(d.at(x, y) == image.at(x, y));
  CHECK_THROWS_AS(image.save(dir / "none/a.png"), IoError);
  CHECK_THROWS_AS(Image(0, 3), ShapeError);
}

TEST_CASE("drawing is clipped, lines cover what they should, text has its shape") {
  Image image(20, 10);
  image.fill(-5, -5, 100, 7, {255, 0, 0});
  CHECK(count(image, {255, 0, 0}) == 20 * 2);
  Image lines(20, 10);
  lines.line(-50, 5, 50, 5, io::kBlack);
  CHECK(count(lines, io::kBlack) == 20);
  lines.line(NAN, 5, 50, 5, io::kBlack);
  lines.line(-1e300, 2, 1e300, 2, io::kBlack, 0.5);
  Image text(30, 12);
  text.text(1, 2, "1.", io::kBlack);
  CHECK(text.at(3, 2) == io::kBlack);  // the top of the 1
  CHECK(text.at(1, 2) == io::kWhite);
  CHECK(text.at(8, 8) == io::kBlack);  // the dot
  CHECK(count(text, io::kBlack) == 10 + 4);
  CHECK(Image::text_width("ab") == 11);
  CHECK(Image::text_width("\xc2\xb0") == 5);  // one letter in UTF-8
  Image up(12, 30);
  up.text_upwards(2, 28, "1.", io::kBlack);
  for (int x = 0; x < 7; ++x)
    for (int y = 0; y < 11; ++y) CHECK(up.at(2 + x, 28 - y) == text.at(1 + y, 2 + x));
}

TEST_CASE("colour maps") {
  CHECK(io::color_at(ColorMap::kViridis, 0) == Color{68, 1, 84});
  CHECK(io::color_at(ColorMap::kViridis, 1) == Color{253, 231, 37});
  CHECK(io::color_at(ColorMap::kViridis, 7) == Color{253, 231, 37});
  CHECK(io::color_at(ColorMap::kDiverging, 0.5) == Color{248, 248, 248});
  const Color sea = io::color_at(ColorMap::kRelief, 0.4999),
              land = io::color_at(ColorMap::kRelief, 0.5);
  CHECK(sea.b > sea.r);
  CHECK(land.g > land.b);
}

TEST_CASE("fields: orientation, missing values, block means, sizes") {
  // 0 .. 1 along rows and columns; the upper left value is the lowest.
  std::vector<float> values(300 * 500);
  for (std::size_t i = 0; i < 300; ++i)
    for (std::size_t j = 0; j < 500; ++j) values[i * 500 + j] = static_cast<float>(i + j) / 798.0f;
  io::FieldPanel panel{.values = view_of(values, {300, 500}), .low = 0, .high = 1};
  const auto find_field = [](const Image& image, Color color) {  // the first such pixel
    for (int y = 0; y < image.height(); ++y)
      for (int x = 0; x < image.width(); ++x)
        if (image.at(x, y) == color) return std::pair(x, y);
    return std::pair(-1, -1);
  };
  const Color lowest = io::color_at(ColorMap::kViridis, 0);
  const Image plain = io::draw_fields({panel});
  const auto [x0, y0] = find_field(plain, lowest);
  REQUIRE(x0 >= 0);
  CHECK(plain.at(x0 + 499, y0 + 299) == io::color_at(ColorMap::kViridis, 1));
  panel.first_row_below = true;
  const Image flipped = io::draw_fields({panel});
  CHECK(flipped.at(x0, y0 + 299) == lowest);
  panel.first_row_below = false;

  values[0] = NAN;
  CHECK(io::draw_fields({panel}).at(x0, y0) == io::kGrey);
  // 500 columns in at most 100 pixels: means of 5 x 5, the missing one left out.
  double sum = 0;
  for (int i = 0; i < 5; ++i)
    for (int j = 0; j < 5; ++j) sum += (i + j) / 798.0;
  const Image reduced = io::draw_fields({panel}, {.max_width = 100});
  CHECK(reduced.width() < plain.width());
  CHECK(reduced.at(x0, y0) == io::color_at(ColorMap::kViridis, sum / 24));

  std::vector<float> small = {0, 1, 1, 0};
  const Image large = io::draw_fields({{.values = view_of(small, {2, 2})}});
  CHECK(count(large, lowest) >= 2 * 100 * 100);

  // Any mixture: constant, empty of values, infinite, one pixel, several columns.
  std::vector<float> constant(12, 3.0f), nothing(12, NAN), infinite(12, INFINITY), one(1, -2.0f);
  io::draw_fields({{.values = view_of(constant, {3, 4}), .title = "c", .hillshade = true},
                   {.values = view_of(nothing, {3, 4}), .map = ColorMap::kDiverging},
                   {.values = view_of(infinite, {3, 4}), .map = ColorMap::kRelief},
                   {.values = view_of(one, {1, 1}), .map = ColorMap::kRelief},
                   {.values = view_of(values, {300, 500}), .map = ColorMap::kRelief}},
                  {.title = "all", .columns = 3, .max_width = 50});
  CHECK_THROWS_AS(io::draw_fields({}), ShapeError);
  CHECK_THROWS_AS(io::draw_fields({{.values = view_of(one, {1})}}), ShapeError);
  CHECK_THROWS_AS(io::draw_fields({{.values = view_of(one, {0, 1})}}), ShapeError);
}

TEST_CASE("round ticks") {
  CHECK(io::round_ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(io::round_ticks(-1.1, 1.1, 4) == std::vector<double>{-1, 0, 1});
  CHECK(io::round_ticks(3, 3, 4).empty());
  CHECK(io::round_ticks(1e9, 1e9 + 4, 4).size() == 5);
  CHECK(io::round_ticks(0, INFINITY, 4).empty());
}

TEST_CASE("plots draw every series, also odd ones") {
  std::vector<double> x, falling, rising;
  for (int i = 1; i <= 200; ++i) {
    x.push_back(i);
    falling.push_back(std::pow(10.0, -i / 50.0));
    rising.push_back(i * 1e-3);
  }
  const io::PlotOptions options{
      .title = "loss", .x_label = "step", .y_label = "mse", .log_y = true};
  const Image image = io::draw_plot({{"model", x, falling}, {"baseline", x, rising}}, options);
  CHECK(image.width() == 800);
  CHECK(count(image, {0, 114, 178}) > 200);
  CHECK(count(image, {213, 94, 0}) > 200);
  // On a logarithmic axis an exponential is a straight line from corner to corner.
  const Image single = io::draw_plot({{"", x, falling}}, options);
  const auto blue = [&](int px, int py) { return single.at(px, py).b > single.at(px, py).r + 60; };
  bool middle = false;
  for (int d = -3; d <= 3; ++d) middle = middle || blue((78 + 784) / 2, (36 + 436) / 2 + d);
  CHECK(middle);
  // Points are not joined.
  const Image dots = io::draw_plot({{.label = "", .x = {0, 1}, .y = {0, 1}, .points = true}});
  const int dark = count(dots, {0, 114, 178});
  CHECK(dark > 0);
  CHECK(dark < 40);

  io::draw_plot({}, options);
  io::draw_plot({{"nan", {1, NAN, 3}, {NAN, 1, 0}}, {"one", {5}, {5}}, {"none", {}, {}}},
                {.log_x = true, .log_y = true});
  io::draw_plot({{"same", {1, 2}, {1e-30, 1e-30}}, {"huge", {1, 2}, {1e300, -1e300}}});
  CHECK_THROWS_AS(io::draw_plot({{"a", {1}, {}}}), ShapeError);
}
