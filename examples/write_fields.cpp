// ranks: 1 3
// A decomposed field as files of other programs: NumPy, NetCDF, Zarr and VTK, each rank writing its
// own part. `write_fields DIRECTORY`; how Python reads them: docs/writing.md.
#include <cmath>
#include <filesystem>
#include <tessera/tessera.hpp>
namespace ts = tessera;

int main(int argc, char** argv) {
  ts::Runtime runtime(argc, argv);
  // Without a directory: one that goes away again.
  const bool keep = argc > 1;
  const std::string dir = keep ? argv[1]
                               : (std::filesystem::temp_directory_path() /
                                  ("tessera-fields-" + std::to_string(runtime.size())))
                                     .string();
  const ts::Mesh mesh = runtime.mesh({{"w", runtime.size()}});
  if (runtime.rank() == 0) std::filesystem::create_directories(dir);
  const ts::io::Collective ranks = ts::nn::collective(mesh);
  ranks.barrier();

  // temperature [N, height, width, C]: its width is cut over the ranks.
  const ts::Layout layout = ts::Placement(mesh).domain(1, "w").resolve({1, 20, 33, 1});
  const auto value = [](const ts::Index& i) {
    return 280.0 + 10.0 * std::sin(0.3 * double(i[1])) + 0.5 * double(i[2]);
  };
  const ts::Tensor t = ts::Tensor::from_function(layout, value);

  ts::io::write_npy(dir + "/temperature.npy", t);

  std::vector<double> lat, lon;
  for (int i = 0; i < 20; ++i) lat.push_back(-38.0 + 4.0 * i);
  for (int i = 0; i < 33; ++i) lon.push_back(5.0 * i);
  const std::vector<ts::io::NetcdfDimension> dims = {{"lat", 20, lat, {{"units", "degrees_north"}}},
                                                     {"lon", 33, lon, {{"units", "degrees_east"}}}};
  ts::io::NetcdfWriter netcdf(
      dir + "/temperature.nc", dims,
      {{.name = "t", .dims = {"lat", "lon"}, .attributes = {{"units", "K"}}},
       {.name = "packed", .dims = {"lat", "lon"}, .packed = ts::io::NetcdfPacking{250.0, 320.0}}},
      {{"Conventions", "CF-1.10"}}, ranks);
  netcdf.write("t", t);
  netcdf.write("packed", t);
  netcdf.commit();

  for (const int format : {2, 3}) {
    ts::io::ZarrWriter zarr(
        mesh, dir + "/temperature_v" + std::to_string(format) + ".zarr", dims,
        {{.name = "t", .dims = {"lat", "lon"}, .attributes = {{"units", "K"}}, .chunks = {10, 10}}},
        {}, {.format = format});
    zarr.write("t", t);
    zarr.commit();
  }

  const ts::io::VtkGrid grid = {.origin = {lat[0], lon[0]}, .spacing = {4.0, 5.0}};
  ts::io::write_vtk_image(dir + "/temperature.vti", {{"t", t}}, grid);
  ts::io::write_vtk_image(dir + "/pieces.pvti", {{"t", t}}, grid);

  // Two triangles in each cell of a grid of 20 x 33 points, cut over the ranks without regard to
  // the points.
  const auto points = ts::Tensor::from_function(
      ts::Placement(mesh).batch("w").resolve({20 * 33, 2}),
      [](const ts::Index& i) { return double(i[1] == 0 ? i[0] % 33 : i[0] / 33); });
  const auto corner = [](const ts::Index& i) {
    const std::int64_t cell = i[0] / 2, low = cell / 32 * 33 + cell % 32;
    const std::int64_t corners[2][3] = {{low, low + 1, low + 34}, {low, low + 34, low + 33}};
    return double(corners[i[0] % 2][i[1]]);
  };
  const auto triangles = ts::Tensor::from_function(
      ts::Placement(mesh).batch("w").resolve({2 * 19 * 32, 3}), corner, ts::DType::kInt64);
  const auto at_points = ts::Tensor::from_function(
      ts::Placement(mesh).batch("w").resolve({20 * 33}), [&](const ts::Index& i) {
        return value({0, i[0] / 33, i[0] % 33, 0});
      });
  const ts::io::VtkMesh surface = {points, ts::io::VtkCell::kTriangle, triangles};
  ts::io::write_vtk_mesh(dir + "/surface.vtu", surface, {{"t", at_points}});
  ts::io::write_vtk_mesh(dir + "/surface_pieces.pvtu", surface, {{"t", at_points}});
  ranks.barrier();
  if (!keep && runtime.rank() == 0) std::filesystem::remove_all(dir);
  return 0;
}
