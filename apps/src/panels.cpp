#include "panels.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <tessera/nn/io/image.hpp>
#include <tessera/nn/io/jsonl.hpp>

#include "svg_plot.hpp"

namespace tessera::app {
namespace {

int rows_of(const std::vector<Panel>& panels) { return static_cast<int>((panels.size() + 1) / 2); }

}  // namespace

Panel panel_by_ranks(const char* title, const char* unit, bool log_y) {
  return {{},
          {.title = title,
           .x_label = "ranks",
           .y_label = unit,
           .log_x = true,
           .log_y = log_y,
           .width = 640,
           .height = 400}};
}

std::string svg_of(const std::vector<Panel>& panels) {
  const int width = panels[0].options.width;
  const int height = panels[0].options.height;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      2 * width, rows_of(panels) * height);
  for (std::size_t i = 0; i < panels.size(); ++i) {
    svg += svg_plot(panels[i].series, panels[i].options, static_cast<int>(i % 2) * width,
                    static_cast<int>(i / 2) * height);
  }
  return svg + "</svg>\n";
}

void save_panels(const std::vector<Panel>& panels,
                 const std::string& dir,
                 const std::string& name) {
  std::filesystem::create_directories(dir);
  const int width = panels[0].options.width;
  const int height = panels[0].options.height;
  io::Image image(2 * width, rows_of(panels) * height);
  for (std::size_t i = 0; i < panels.size(); ++i) {
    image.paste(io::draw_plot(panels[i].series, panels[i].options), static_cast<int>(i % 2) * width,
                static_cast<int>(i / 2) * height);
  }
  image.save(dir + "/" + name + ".png");
  io::write_text(dir + "/" + name + ".svg", svg_of(panels));
}

}  // namespace tessera::app
