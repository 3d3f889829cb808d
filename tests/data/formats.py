#!/usr/bin/env python3
"""Makes tests/data/formats: small files of fields, written and read by netCDF4, h5py, zarr and NumPy.

    python tests/data/formats.py

Each line of `manifest.txt` names a file, a variable in it, where in `expected.f64` (doubles) lies what the library reads, and
its number of dimensions and shape. Missing points are NaN there, of complex numbers the last dimension holds the two parts. The
tests compare Tessera's readers with these. Needs numpy, netCDF4, h5py, zarr 3; the files are in the repository, so the tests need none of them.
"""

import pathlib
import shutil

import h5py
import netCDF4
import numcodecs
import numpy as np
import zarr

HERE = pathlib.Path(__file__).parent / "formats"
SHAPE = (7, 5, 9)
CHUNKS = (4, 5, 5)
lines = []
doubles = []


def values(dtype, shape=SHAPE):
    """Numbers that differ in all bytes and fit the type."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(len(lines) + 1)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype.newbyteorder("="), endpoint=True).astype(dtype)
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return (rng.normal(size=shape) * 10).astype(dtype)


def expect(path, variable, seen):
    """What the library reads, as doubles."""
    seen = np.ma.asarray(seen)
    if seen.dtype.kind == "c":
        plain = np.ascontiguousarray(seen.filled(np.nan)).astype(np.complex128)
        array = plain.view(np.float64).reshape(plain.shape + (2,))
    else:
        array = np.ma.filled(seen.astype(np.float64), np.nan)
    numbers = [sum(d.size for d in doubles), array.ndim, *array.shape]
    lines.append(" ".join([path, variable] + [str(n) for n in numbers]))
    doubles.append(np.ascontiguousarray(array, dtype="<f8").ravel())


def netcdf(path, file_format, **storage):
    rng = np.random.default_rng(3)
    with netCDF4.Dataset(HERE / path, "w", format=file_format) as f:
        f.title = "packed and missing values"
        f.createDimension("time", None)
        f.createDimension("lat", SHAPE[1])
        f.createDimension("lon", SHAPE[2])
        t = f.createVariable("time", "f8", ("time",))
        t.units = "days since 2000-01-01"
        packed = f.createVariable("packed", "i2", ("time", "lat", "lon"), fill_value=-3, **storage)
        packed.scale_factor = 0.25
        packed.add_offset = 10.0
        packed.missing_value = np.array([0, 7], "i2")
        packed.valid_range = np.array([-1, 8], "i2")
        packed.set_auto_maskandscale(False)
        plain = f.createVariable("plain", "f4", ("time", "lat", "lon"), **storage)
        plain.missing_value = np.float32(-9.99e33)
        small = f.createVariable("small", "i1", ("lat", "lon"))
        small._Unsigned = "true"
        small.set_auto_maskandscale(False)
        packed[:] = rng.integers(-3, 10, SHAPE)
        field = rng.normal(size=SHAPE).astype("f4")
        field[rng.random(SHAPE) < 0.2] = -9.99e33
        field[0, 0, 0] = np.nan
        field[1, 1, 1] = netCDF4.default_fillvals["f4"]
        plain.set_auto_maskandscale(False)
        plain[:] = field
        small[:] = rng.integers(-128, 127, SHAPE[1:])
        t[:] = np.arange(SHAPE[0]) * 0.5
    with netCDF4.Dataset(HERE / path) as f:
        for name in f.variables:
            if name == "small":
                f[name].set_auto_mask(False)  # it would mask 129, a default fill value that bytes have not
            expect(path, name, f[name][:])


def series():
    seen = []
    for k, (scale, offset) in enumerate([(0.5, 1.0), (0.25, -3.0), (0.5, 1.0)]):
        with netCDF4.Dataset(HERE / f"series_{k}.nc", "w", format="NETCDF3_CLASSIC") as f:
            f.createDimension("time", None)
            f.createDimension("x", 4)
            v = f.createVariable("v", "i2", ("time", "x"), fill_value=-1)
            v.scale_factor, v.add_offset = scale, offset
            v.set_auto_maskandscale(False)
            v[:] = np.random.default_rng(k).integers(-1, 9, (k + 1, 4))
            w = f.createVariable("w", "f4", ("x",))
            w[:] = np.arange(4)
        with netCDF4.Dataset(HERE / f"series_{k}.nc") as f:
            seen.append(f["v"][:])
    expect("series_?.nc", "v", np.ma.concatenate(seen))


def hdf5():
    path = "fields.h5"
    with h5py.File(HERE / path, "w", libver="earliest") as f:
        for dtype in ["u1", "i1", "<u2", ">i2", "<i4", ">u4", "<i8", ">f2", "<f4", ">f4", ">f8", "?", "c8", ">c16"]:
            name = np.dtype(dtype).name + ("_big" if dtype[0] == ">" else "")
            f.create_dataset(f"types/{name}", data=values(dtype, (3, 4, 2)))
        f.create_dataset("chunked", data=values("i4"), chunks=CHUNKS, compression="gzip", shuffle=True, fletcher32=True)
        z = f.create_dataset("z", data=values("f4"), chunks=CHUNKS)
        for d, name in enumerate(["time", "lat", "lon"]):
            scale = f.create_dataset(name, data=np.arange(SHAPE[d]) * 1.5)
            scale.make_scale(name)
            z.dims[d].attach_scale(scale)
        z.attrs["units"] = "m"
        z.attrs["levels"] = [1.0, 2.0]
        f.create_dataset("part", shape=SHAPE, dtype="i2", chunks=CHUNKS, fillvalue=5)[:4] = 9
        f.create_dataset("scalar", data=np.float32(2.5))
        f.create_dataset("text", data="words")
        f.attrs["title"] = "fields"
        f["soft"] = h5py.SoftLink("/z")
        f["outside"] = h5py.ExternalLink("elsewhere.h5", "/z")
        f.create_dataset("external", (4,), "f4", external=[("/etc/hostname", 0, 16)])
    with h5py.File(HERE / path) as f:
        names = []
        f.visititems(lambda name, o: names.append(name) if isinstance(o, h5py.Dataset) else None)
        for name in names:
            if name not in ("text", "external"):
                expect(path, name, f[name][()])


def zarr_arrays():
    blosc2 = numcodecs.Blosc(cname="zstd", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE)
    old = {
        "plain": dict(dtype="<f4", compressors=None),
        "big_fortran": dict(dtype=">i4", compressors=None, order="F"),
        "zlib": dict(dtype="<i2", compressors=numcodecs.Zlib(5)),
        "gzip_fortran": dict(dtype="<f8", compressors=numcodecs.GZip(5), order="F"),
        "blosc": dict(dtype="<f4", compressors=numcodecs.Blosc(cname="lz4", shuffle=numcodecs.Blosc.SHUFFLE)),
        "blosc_zstd": dict(dtype="<u8", compressors=blosc2),
        "zstd_slash": dict(dtype="|u1", compressors=numcodecs.Zstd(3), chunk_key_encoding={"name": "v2", "separator": "/"}),
        "lz4_shuffle": dict(dtype="<f8", compressors=numcodecs.LZ4(), filters=[numcodecs.Shuffle(8)]),
        "complex": dict(dtype="<c8", compressors=None),
        "bool": dict(dtype="|b1", compressors=None),
        "half": dict(dtype="<f2", compressors=None),
    }
    path = "old.zarr"
    group = zarr.open_group(HERE / path, mode="w", zarr_format=2, attributes={"title": "format 2"})
    for name, options in old.items():
        a = group.create_array(name, shape=SHAPE, chunks=CHUNKS, fill_value=0, **options)
        a[:] = values(options["dtype"])
        expect(path, name, a[:])
    a = group.create_array("inner/holes", shape=SHAPE, chunks=CHUNKS, dtype="<f4", compressors=None, fill_value=np.nan)
    a[:3, :, :3] = 1.5
    expect(path, "inner/holes", a[:])
    a = group.create_array("scalar", shape=(), chunks=(), dtype="<f8", compressors=None, fill_value=0)
    a[()] = 4.25
    expect(path, "scalar", a[()])
    # As xarray writes it: packed, the fill value marks missing points.
    a = group.create_array("packed", shape=SHAPE, chunks=CHUNKS, dtype="<i2", compressors=None, fill_value=-3)
    a.attrs.update({"_ARRAY_DIMENSIONS": ["time", "lat", "lon"], "scale_factor": 0.25, "add_offset": 10.0})
    raw = np.random.default_rng(5).integers(-3, 3, SHAPE)
    a[:] = raw
    expect(path, "packed", np.where(raw == -3, np.nan, raw * 0.25 + 10.0))

    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

    new = {
        "plain": dict(dtype="float32", compressors=None),
        "big": dict(dtype="int32", compressors=None, serializer=BytesCodec(endian="big")),
        "gzip": dict(dtype="int16", compressors=[GzipCodec(level=5)]),
        "blosc": dict(dtype="float64", compressors=[BloscCodec(cname="zstd", clevel=3, shuffle="shuffle")]),
        "zstd_crc": dict(dtype="uint32", compressors=[ZstdCodec(level=3), Crc32cCodec()]),
        "transposed": dict(dtype="float32", compressors=[ZstdCodec(level=1)], filters=[TransposeCodec(order=(2, 0, 1))]),
        "dotted": dict(dtype="float32", compressors=None, chunk_key_encoding={"name": "v2", "separator": "."}),
        "complex": dict(dtype="complex128", compressors=None),
        "half": dict(dtype="float16", compressors=None),
        "bool": dict(dtype="bool", compressors=None),
    }
    path = "new.zarr"
    group = zarr.open_group(HERE / path, mode="w", zarr_format=3, attributes={"title": "format 3"})
    for name, options in new.items():
        a = group.create_array(name, shape=SHAPE, chunks=CHUNKS, dimension_names=["time", "lat", "lon"], **options)
        a[:] = values(options["dtype"])
        expect(path, name, a[:])
    a = group.create_array("holes", shape=SHAPE, chunks=CHUNKS, dtype="float32", compressors=None, fill_value=np.nan)
    a[:3, :, :3] = 1.5
    expect(path, "holes", a[:])
    for name, compressors in [("sharded", None), ("sharded_zstd", [ZstdCodec(level=3)])]:
        a = group.create_array(name, shape=(12, 10), chunks=(3, 5), shards=(6, 10), dtype="int64", compressors=compressors, fill_value=7)
        a[:5] = values("i8", (5, 10))
        a[9:] = 3
        expect(path, name, a[:])
    start = ShardingCodec(chunk_shape=(2, 3), codecs=[TransposeCodec(order=(1, 0)), BytesCodec(endian="big")], index_location="start")
    a = group.create_array("sharded_start", shape=(5, 7), chunks=(4, 6), dtype="float32", serializer=start, compressors=None, fill_value=-1)
    a[1:5, 2:7] = values("f4", (4, 5))
    expect(path, "sharded_start", a[:])


def numpy_files():
    arrays = {}
    for dtype in ["?", "i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", "<u4", "<i8", ">i8", "<u8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c16"]:
        name = np.dtype(dtype).name + ("_big" if dtype[0] == ">" else "")
        arrays[name] = values(dtype, (3, 4, 2))
        arrays[name + "_fortran"] = np.asfortranarray(values(dtype, (3, 4, 2)))
    arrays["scalar"] = np.float64(1.25)
    arrays["empty"] = np.zeros((0, 3), "f4")
    arrays["inner/one"] = values("f4", (5,))
    for path, save in [("stored.npz", np.savez), ("deflated.npz", np.savez_compressed)]:
        save(HERE / path, **arrays)
        with np.load(HERE / path) as f:
            for name in f.files:
                expect(path, name, f[name])
    for path, array in [("c.npy", values("<f4")), ("fortran.npy", np.asfortranarray(values(">f8"))), ("scalar.npy", np.float32(3.5))]:
        np.save(HERE / path, array)
        expect(path, "array", np.load(HERE / path))


def raw_files():
    array = values(">i2")
    with open(HERE / "bare.raw", "wb") as f:
        f.write(b"12345" + array.tobytes(order="F") + b"tail")
    (HERE / "bare.raw.json").write_text(
        '{"shape": [7, 5, 9], "type": "int16", "offset": 5, "byte_order": "big", "order": "F", "name": "z",\n'
        ' "dims": ["time", "y", "x"], "attributes": {"scale_factor": 0.5, "missing_value": [%d]}}\n' % array[1, 2, 3]
    )
    expect("bare.raw", "z", np.where(array == array[1, 2, 3], np.nan, array * 0.5))


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir(parents=True)
    netcdf("packed4.nc", "NETCDF4", zlib=True, chunksizes=(2, 3, 4))
    netcdf("packed3.nc", "NETCDF3_64BIT_OFFSET")
    series()
    hdf5()
    zarr_arrays()
    numpy_files()
    raw_files()
    np.concatenate(doubles).tofile(HERE / "expected.f64")
    (HERE / "manifest.txt").write_text("".join(line + "\n" for line in lines))
    print(f"{len(lines)} variables, {sum(p.stat().st_size for p in HERE.rglob('*') if p.is_file())} bytes")
