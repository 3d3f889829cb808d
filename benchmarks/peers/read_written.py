"""Opens what examples/write_fields wrote with the readers that others use, and compares.

  python3 benchmarks/peers/read_written.py DIRECTORY

NumPy; netCDF4, xarray, Zarr and VTK (its own XML readers) where they are installed.
"""

import importlib.util
import os
import sys

import numpy as np

DIR = sys.argv[1]
ROWS, COLUMNS = 20, 33
rows, columns = np.meshgrid(np.arange(ROWS), np.arange(COLUMNS), indexing="ij")
TRUTH = 280.0 + 10.0 * np.sin(0.3 * rows) + 0.5 * columns
failed = False


def check(name, ok):
    global failed
    failed = failed or not ok
    print(f"{name:45} {'ok' if ok else 'WRONG'}")


def installed(module):
    if importlib.util.find_spec(module):
        return True
    print(f"{module} is not installed: skipped")
    return False


def close(a, tolerance=1e-4):
    return np.shape(a) == TRUTH.shape and float(np.abs(np.asarray(a) - TRUTH).max()) <= tolerance


def path(name):
    return os.path.join(DIR, name)


a = np.load(path("temperature.npy"))
check("numpy.load temperature.npy", a.dtype == np.float32 and a.shape == (1, ROWS, COLUMNS, 1) and close(a[0, :, :, 0]))

if installed("netCDF4"):
    import netCDF4

    with netCDF4.Dataset(path("temperature.nc")) as f:
        check("netCDF4 t", close(f["t"][:]) and f["t"].units == "K" and float(f["lat"][1]) == -34.0)
        check("netCDF4 packed", close(f["packed"][:], 70.0 / 131068 * 1.1))

if installed("xarray"):
    import xarray

    with xarray.open_dataset(path("temperature.nc")) as f:
        check("xarray temperature.nc", close(f["t"]) and f["t"].dims == ("lat", "lon"))

if installed("zarr"):
    import zarr

    for version in (2, 3):
        g = zarr.open_group(path(f"temperature_v{version}.zarr"), mode="r")
        check(f"zarr format {version}", close(g["t"][:]) and g["t"].chunks == (10, 10) and g["lat"][1] == -34.0)

if installed("vtk"):
    import vtk
    from vtk.util.numpy_support import vtk_to_numpy

    window = vtk.vtkStringOutputWindow()
    vtk.vtkOutputWindow.SetInstance(window)

    for name, reader in (("temperature.vti", vtk.vtkXMLImageDataReader()), ("pieces.pvti", vtk.vtkXMLPImageDataReader())):
        reader.SetFileName(path(name))
        reader.Update()
        image = reader.GetOutput()
        t = vtk_to_numpy(image.GetPointData().GetArray("t")).reshape(ROWS, COLUMNS)
        ok = image.GetDimensions() == (COLUMNS, ROWS, 1) and image.GetSpacing() == (5.0, 4.0, 1.0)
        check(f"vtk {name}", ok and image.GetOrigin() == (0.0, -38.0, 0.0) and close(t))

    for name, reader in (
        ("surface.vtu", vtk.vtkXMLUnstructuredGridReader()),
        ("surface_pieces.pvtu", vtk.vtkXMLPUnstructuredGridReader()),
    ):
        reader.SetFileName(path(name))
        reader.Update()
        grid = reader.GetOutput()
        at = vtk_to_numpy(grid.GetPoints().GetData()).astype(int)
        t = vtk_to_numpy(grid.GetPointData().GetArray("t"))
        ok = float(np.abs(TRUTH[at[:, 1], at[:, 0]] - t).max()) < 1e-4 and grid.GetNumberOfCells() == 2 * 19 * 32
        quality = vtk.vtkCellSizeFilter()
        quality.SetInputData(grid)
        quality.Update()
        area = vtk_to_numpy(quality.GetOutput().GetCellData().GetArray("Area"))
        check(f"vtk {name}", ok and abs(area.sum() - 19 * 32) < 1e-6 and np.all(np.abs(area - 0.5) < 1e-9))
    if window.GetOutput():
        print(window.GetOutput())
        failed = True

sys.exit(1 if failed else 0)
