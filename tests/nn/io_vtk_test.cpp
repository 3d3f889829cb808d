// ranks: 1 2 3 4
// Decomposed fields and meshes as VTK files, read back by a plain parser.
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <regex>
#include <set>
#include <tessera/nn/io/vtk.hpp>

#include "write_support.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

std::string attribute(const std::string& tag, const std::string& name) {
  std::smatch found;
  if (!std::regex_search(tag, found, std::regex(" " + name + "=\"([^\"]*)\""))) return "(none)";
  return found[1];
}

std::vector<std::string> tags(const std::string& xml, const std::string& name) {
  std::vector<std::string> all;
  const std::regex form("<" + name + "( [^>]*)?>");
  for (auto i = std::sregex_iterator(xml.begin(), xml.end(), form); i != std::sregex_iterator();
       ++i)
    all.push_back(i->str());
  return all;
}

std::vector<double> numbers(const std::string& text) {
  std::vector<double> values;
  std::istringstream in(text);
  for (double v; in >> v;) values.push_back(v);
  return values;
}

struct DataArray {
  std::string type;
  int components = 0;
  std::vector<double> values;
};

/// A file with one piece.
struct File {
  std::string xml;
  std::map<std::string, DataArray> arrays;

  explicit File(const std::string& path) {
    const std::string all = test::read_file(path);
    const std::string mark = "<AppendedData encoding=\"raw\">\n_";
    const std::size_t at = all.find(mark);
    REQUIRE(at != std::string::npos);
    xml = all.substr(0, at);
    const std::string root = tags(xml, "VTKFile").at(0);
    CHECK(attribute(root, "byte_order") == "LittleEndian");
    CHECK(attribute(root, "header_type") == "UInt64");
    const std::string data = all.substr(at + mark.size());
    std::size_t end = 0;
    for (const std::string& tag : tags(xml, "DataArray")) {
      DataArray a;
      a.type = attribute(tag, "type");
      a.components = std::stoi(attribute(tag, "NumberOfComponents"));
      const std::size_t offset = std::stoul(attribute(tag, "offset"));
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, data.data() + offset, 8);
      const std::size_t size = a.type == "UInt8" ? 1 : a.type.ends_with("64") ? 8 : 4;
      REQUIRE(offset + 8 + bytes <= data.size());
      for (std::size_t i = 0; i < bytes; i += size) {
        const char* const p = data.data() + offset + 8 + i;
        const auto take = [&]<class T>(T) {
          T v;
          std::memcpy(&v, p, sizeof(T));
          return static_cast<double>(v);
        };
        a.values.push_back(a.type == "UInt8"     ? take(std::uint8_t{})
                           : a.type == "Int32"   ? take(std::int32_t{})
                           : a.type == "Int64"   ? take(std::int64_t{})
                           : a.type == "Float32" ? take(float{})
                                                 : take(double{}));
      }
      end = std::max(end, offset + 8 + bytes);
      arrays[attribute(tag, "Name")] = a;
    }
    CHECK(data.substr(end) == "\n</AppendedData>\n</VTKFile>\n");
  }
};

Shape channels_last(const Shape& domain, std::int64_t samples, std::int64_t channels) {
  Shape shape = domain;
  shape.insert(0, samples);
  shape.push_back(channels);
  return shape;
}

/// x, y, z of point (cell) `n` of an extent, as indices of the domain, outermost first.
Index place(const std::vector<double>& extent, bool cells, std::int64_t n, int dims) {
  Index i = Dims::filled(dims, 0);
  for (int axis = 0; axis < 3; ++axis) {
    const auto lo = static_cast<std::int64_t>(extent[static_cast<std::size_t>(2 * axis)]);
    const auto hi = static_cast<std::int64_t>(extent[static_cast<std::size_t>(2 * axis + 1)]);
    const std::int64_t count = std::max<std::int64_t>(1, hi - lo + (cells ? 0 : 1));
    if (dims - 1 - axis >= 0) i[dims - 1 - axis] = lo + n % count;
    n /= count;
  }
  return i;
}

std::int64_t volume(const std::vector<double>& extent, bool cells) {
  std::int64_t n = 1;
  for (std::size_t axis = 0; axis < 3; ++axis)
    n *= std::max<std::int64_t>(
        1, static_cast<std::int64_t>(extent[2 * axis + 1] - extent[2 * axis]) + (cells ? 0 : 1));
  return n;
}

}  // namespace

TEST_CASE("images: one file and pieces, values at points and cells, any layout") {
  const SharedDir dir;
  Rng rng(21);
  for (const Mesh& mesh : write_meshes()) {
    for (const Shape& domain :
         {Shape{6, 5, 7}, Shape{1, 4, 2}, Shape{9, 4}, Shape{3, 1}, Shape{11}}) {
      for (const bool cells : {false, true}) {
        const int dims = domain.size();
        const Shape shape = channels_last(domain, 3, 2), single = channels_last(domain, 3, 1);
        std::vector<int> some;
        for (int d = 0; d <= dims + 1; ++d) some.push_back(d);
        const Layout layout = random_layout(mesh, shape, some, rng);
        const Layout other = random_layout(mesh, single, some, rng);
        INFO(layout.str() << " and " << other.str() << (cells ? " cells" : " points"));
        std::vector<double> origin, spacing;
        for (int d = 0; d < dims; ++d) {
          origin.push_back(10.0 + d);
          spacing.push_back(0.5 + d);
        }
        const std::vector<io::VtkArray> fields = {
            {"wind <u & v>", numbered(layout, DType::kFloat64)},
            {"mask", numbered(other, DType::kBool)},
            {"half", numbered(other, DType::kBFloat16)}};
        const io::VtkGrid grid = {
            .origin = origin, .spacing = spacing, .cells = cells, .sample = 1};
        io::write_vtk_image(dir / "one.vti", fields, grid);
        io::write_vtk_image(dir / "many.pvti", fields, grid);

        std::vector<double> whole;
        for (int axis = 0; axis < 3; ++axis) {
          const int d = dims - 1 - axis;
          whole.push_back(0);
          whole.push_back(d < 0 ? 0 : static_cast<double>(domain[d] - (cells ? 0 : 1)));
        }
        std::map<std::int64_t, int> seen_cells, seen_points;
        const auto check_piece = [&](const File& file, const std::vector<double>& extent) {
          const std::int64_t n = volume(extent, cells);
          const DataArray& wind = file.arrays.at("wind &lt;u &amp; v&gt;");
          const DataArray& mask = file.arrays.at("mask");
          const DataArray& half = file.arrays.at("half");
          CHECK(wind.type == "Float64");
          CHECK(mask.type == "UInt8");
          CHECK(half.type == "Float32");
          CHECK(wind.components == 2);
          REQUIRE(std::ssize(wind.values) == 2 * n);
          REQUIRE(std::ssize(mask.values) == n);
          REQUIRE(std::ssize(half.values) == n);
          int wrong = 0;
          for (std::int64_t k = 0; k < n; ++k) {
            const Index at = place(extent, cells, k, dims);
            Index i = at;
            i.insert(0, 1);
            i.push_back(0);
            const std::int64_t first = number_of(shape, i), scalar = number_of(single, i);
            const auto u = static_cast<std::size_t>(k);
            wrong += wind.values[2 * u] != static_cast<double>(first);
            wrong += wind.values[2 * u + 1] != static_cast<double>(first + 1);
            wrong += mask.values[u] != expected_number(DType::kBool, scalar);
            wrong += half.values[u] != expected_number(DType::kBFloat16, scalar);
            ++(cells ? seen_cells : seen_points)[number_of(domain, at)];
            // Between points: a cell begins at each but the last ones.
            bool begins = !cells;
            for (int d = 0; begins && d < dims; ++d)
              begins = domain[d] == 1 ||
                       at[d] < static_cast<std::int64_t>(
                                   extent[static_cast<std::size_t>(2 * (dims - 1 - d) + 1)]);
            if (begins) ++seen_cells[number_of(domain, at)];
          }
          CHECK(wrong == 0);
        };
        const auto check_head = [&](const std::string& xml, const std::string& kind) {
          const std::string tag = tags(xml, kind).at(0);
          CHECK(numbers(attribute(tag, "WholeExtent")) == whole);
          std::vector<double> o, s;
          for (int axis = 0; axis < 3; ++axis) {
            const int d = dims - 1 - axis;
            o.push_back(d < 0 ? 0.0 : origin[static_cast<std::size_t>(d)]);
            s.push_back(d < 0 ? 1.0 : spacing[static_cast<std::size_t>(d)]);
          }
          CHECK(numbers(attribute(tag, "Origin")) == o);
          CHECK(numbers(attribute(tag, "Spacing")) == s);
        };
        const File one(dir / "one.vti");
        check_head(one.xml, "ImageData");
        CHECK(numbers(attribute(tags(one.xml, "Piece").at(0), "Extent")) == whole);
        check_piece(one, whole);
        seen_cells.clear();
        seen_points.clear();

        const std::string index = test::read_file(dir / "many.pvti");
        check_head(index, "PImageData");
        CHECK(tags(index, cells ? "PCellData" : "PPointData").size() == 1);
        CHECK(tags(index, "PDataArray").size() == 3);
        std::set<std::string> named;
        for (const std::string& piece : tags(index, "Piece")) {
          const std::string source = attribute(piece, "Source");
          named.insert(source.substr(source.find('/') + 1));
          const File file(dir / source);
          check_head(file.xml, "ImageData");
          CHECK(attribute(tags(file.xml, "Piece").at(0), "Extent") == attribute(piece, "Extent"));
          check_piece(file, numbers(attribute(piece, "Extent")));
        }
        // Each cell lies in one piece, each point in at least one, and no other files lie there.
        std::int64_t all_cells = 1;
        for (const std::int64_t n : domain) all_cells *= cells || n == 1 ? n : n - 1;
        CHECK(std::ssize(seen_cells) == all_cells);
        for (const auto& [cell, times] : seen_cells) CHECK(times == 1);
        if (!cells) CHECK(std::ssize(seen_points) == domain.product());
        std::set<std::string> there;
        for (const auto& e : std::filesystem::directory_iterator(dir / "many"))
          there.insert(e.path().filename().string());
        CHECK(there == named);
        dir.ranks().barrier();
      }
    }
  }
  CHECK(dir.list() == std::vector<std::string>{"many", "many.pvti", "one.vti"});
}

TEST_CASE("meshes: triangles whose corners lie on other ranks, edges of graphs, points") {
  const SharedDir dir;
  Rng rng(22);
  constexpr std::int64_t kPoints = 13, kTriangles = 17, kEdges = 9;
  for (const Mesh& mesh : write_meshes()) {
    for (const int kind : {0, 1, 2}) {
      const std::int64_t corners = kind == 0 ? 3 : kind == 1 ? 2 : 1;
      const std::int64_t cells = kind == 0 ? kTriangles : kind == 1 ? kEdges : kPoints;
      const auto corner = [&](std::int64_t cell, std::int64_t k) {
        return kind == 2 ? cell : (7 * cell + 5 * k + cell * k) % kPoints;
      };
      io::VtkMesh m;
      const std::int64_t dims = 3 - kind % 2;
      m.points = numbered(random_layout(mesh, {kPoints, dims}, {0}, rng), DType::kFloat64, 100);
      m.kind = kind == 0   ? io::VtkCell::kTriangle
               : kind == 1 ? io::VtkCell::kLine
                           : io::VtkCell::kVertex;
      if (kind != 2)
        m.cells = Tensor::from_function(
            random_layout(mesh, {cells, corners}, {0}, rng),
            [&](const Index& i) { return static_cast<double>(corner(i[0], i[1])); },
            kind == 0 ? DType::kInt64 : DType::kInt32);
      const std::vector<io::VtkArray> point_values = {
          {"p", numbered(random_layout(mesh, {kPoints}, {0}, rng), DType::kFloat32)},
          {"v", numbered(random_layout(mesh, {kPoints, 2}, {0}, rng), DType::kInt64)}};
      const std::vector<io::VtkArray> cell_values = {
          {"c", numbered(random_layout(mesh, {cells, 2}, {0}, rng), DType::kFloat32)}};
      io::write_vtk_mesh(dir / "one.vtu", m, point_values, cell_values);
      io::write_vtk_mesh(dir / "many.pvtu", m, point_values, cell_values);

      std::map<std::int64_t, int> seen_cells;
      std::set<std::int64_t> seen_points;
      const auto check_piece = [&](const File& file) {
        const std::string piece = tags(file.xml, "Piece").at(0);
        const auto n = std::stoul(attribute(piece, "NumberOfPoints"));
        const auto c = std::stoul(attribute(piece, "NumberOfCells"));
        const auto& x = file.arrays.at("Points").values;
        const auto& p = file.arrays.at("p").values;
        const auto& v = file.arrays.at("v").values;
        const auto& of_cell = file.arrays.at("c").values;
        const auto& connectivity = file.arrays.at("connectivity").values;
        REQUIRE(x.size() == 3 * n);
        REQUIRE(p.size() == n);
        REQUIRE(v.size() == 2 * n);
        REQUIRE(of_cell.size() == 2 * c);
        REQUIRE(connectivity.size() == c * static_cast<std::size_t>(corners));
        REQUIRE(file.arrays.at("offsets").values.size() == c);
        for (std::size_t i = 0; i < n; ++i) {
          const double id = p[i];
          seen_points.insert(static_cast<std::int64_t>(id));
          for (std::int64_t d = 0; d < 3; ++d)
            CHECK(x[3 * i + static_cast<std::size_t>(d)] ==
                  (d < dims ? 100 + id * static_cast<double>(dims) + static_cast<double>(d) : 0.0));
          CHECK(v[2 * i] == 2 * id);
          CHECK(v[2 * i + 1] == 2 * id + 1);
        }
        for (std::size_t i = 0; i < c; ++i) {
          CHECK(file.arrays.at("offsets").values[i] ==
                static_cast<double>(corners) * static_cast<double>(i + 1));
          CHECK(file.arrays.at("types").values[i] == (kind == 0 ? 5 : kind == 1 ? 3 : 1));
          const auto cell = static_cast<std::int64_t>(of_cell[2 * i]) / 2;
          ++seen_cells[cell];
          CHECK(of_cell[2 * i + 1] == of_cell[2 * i] + 1);
          for (std::int64_t k = 0; k < corners; ++k) {
            const double local =
                connectivity[i * static_cast<std::size_t>(corners) + static_cast<std::size_t>(k)];
            REQUIRE(local < static_cast<double>(n));
            CHECK(p[static_cast<std::size_t>(local)] == static_cast<double>(corner(cell, k)));
          }
        }
      };
      const auto check_all = [&] {
        CHECK(std::ssize(seen_cells) == cells);
        for (const auto& [cell, times] : seen_cells) CHECK(times == 1);
        CHECK(std::ssize(seen_points) == kPoints);
        seen_cells.clear();
        seen_points.clear();
      };
      check_piece(File(dir / "one.vtu"));
      check_all();
      const std::string index = test::read_file(dir / "many.pvtu");
      CHECK(tags(index, "PPoints").size() == 1);
      CHECK(tags(index, "PDataArray").size() == 4);
      for (const std::string& piece : tags(index, "Piece"))
        check_piece(File(dir / attribute(piece, "Source")));
      check_all();
      dir.ranks().barrier();
    }
  }
}

TEST_CASE("VTK: what does not fit, and disks that fail") {
  const SharedDir dir;
  const Mesh mesh = write_meshes()[0];
  const auto field = [&](const Shape& shape) {
    return std::vector<io::VtkArray>{{"f", Tensor::full(Layout::replicated(mesh, shape), 1.0)}};
  };
  CHECK_THROWS_AS(io::write_vtk_image(dir / "a.vtu", field({1, 3, 1})), UsageError);
  CHECK_THROWS_AS(io::write_vtk_image(dir / "a.vti", {}), UsageError);
  CHECK_THROWS_AS(io::write_vtk_image(dir / "a.vti", field({3, 1})), ShapeError);
  CHECK_THROWS_AS(io::write_vtk_image(dir / "a.vti", field({1, 0, 1})), ShapeError);
  CHECK_THROWS_AS(io::write_vtk_image(dir / "a.vti", field({1, 3, 1}), {.sample = 1}), UsageError);
  CHECK_THROWS_AS(io::write_vtk_image(dir / "a.vti", field({1, 3, 1}), {.origin = {1, 2}}),
                  UsageError);
  const Tensor points = Tensor::full(Layout::replicated(mesh, {3, 2}), 0.5);
  const Tensor far = Tensor::full(Layout::replicated(mesh, {1, 2}), 3, DType::kInt64);
  CHECK_THROWS_WITH(io::write_vtk_mesh(dir / "a.vtu", {points, io::VtkCell::kLine, far}, {}),
                    Catch::Contains("the corner 3"));
  CHECK_THROWS_AS(io::write_vtk_mesh(dir / "a.vtu", {points, io::VtkCell::kTriangle, far}, {}),
                  ShapeError);
  CHECK_THROWS_AS(io::write_vtk_mesh(dir / "a.vtu", {points}, field({2})), ShapeError);
  CHECK(dir.list().empty());

  BadDisk disk;
  const io::SystemCallsScope scope(disk);
  const auto large = [&](double value) {
    return std::vector<io::VtkArray>{
        {"f", Tensor::full(Placement(mesh).domain(0, "all").resolve({1, 8, 40, 1}), value)}};
  };
  for (const std::string name : {"a.vti", "a.pvti"}) {
    const int bad = mesh.size() - 1;
    disk.room = mesh.rank() == bad ? 200 : -1;
    CHECK_THAT(io_error_of(dir, [&] { io::write_vtk_image(dir / name, large(1.0)); }),
               Catch::Contains("Make room there"));
    if (name == "a.vti") CHECK(dir.list().empty());
    CHECK(!std::filesystem::exists(dir / name));
    disk.room = -1;
    disk.short_writes = true;
    io::write_vtk_image(dir / name, large(1.0));
    disk.short_writes = false;
    const std::string good = test::read_file(dir / name);
    disk.room = mesh.rank() == bad ? 200 : -1;
    CHECK_THAT(io_error_of(dir, [&] { io::write_vtk_image(dir / name, large(2.0)); }),
               Catch::Contains("Make room there"));
    CHECK(test::read_file(dir / name) == good);
    disk.room = -1;
    dir.ranks().barrier();
    if (mesh.rank() == 0) {
      std::filesystem::remove_all(dir / "a");
      std::filesystem::remove(dir / name);
    }
    dir.ranks().barrier();
  }
}
