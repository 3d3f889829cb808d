"""Writes tests/data/nifti/: small volumes by nibabel, and what nibabel reads from them.

  python3 tests/data/nifti.py tests/data/nifti

expected.txt: per file its name, dimensions (i first), the three rows of the affine, the voxels (i fastest). Made with nibabel 5.
"""

import gzip
import sys

import nibabel as nib
import numpy as np

folder = sys.argv[1]
rng = np.random.default_rng(5)

scaled = nib.Nifti1Image(rng.integers(-3000, 3000, (5, 4, 3)).astype(">i2"), None, nib.Nifti1Header(endianness=">"))
turn = nib.quaternions.quat2mat([0.8, 0.2, -0.4, np.sqrt(1 - 0.8**2 - 0.2**2 - 0.4**2)])
affine = np.eye(4)
affine[:3, :3] = turn @ np.diag([1.5, 2.0, -2.5])
affine[:3, 3] = [-10, 4, 7.25]
scaled.set_qform(affine, 1)
scaled.set_sform(None, 0)
scaled.header["scl_slope"] = 0.3
scaled.header["scl_inter"] = -7

double = nib.Nifti2Image(rng.normal(size=(3, 4, 2, 2)), None)
rows = np.eye(4)
rows[:3] = rng.normal(size=(3, 4))
double.set_sform(rows, 2)

wide = nib.Nifti1Image(rng.integers(0, 2**32, (7, 1, 3), dtype=np.uint32), np.diag([2.0, 3.0, 4.0, 1.0]))

images = {"scaled.nii.gz": scaled, "double.nii": double, "wide.nii.gz": wide}
with open(f"{folder}/expected.txt", "w") as out:
    for name, image in images.items():
        if name == "scaled.nii.gz":
            # nibabel would choose a scale of its own: this file is put together here.
            image.header.set_data_dtype(">i2")
            image.header["vox_offset"] = 352
            with gzip.GzipFile(f"{folder}/{name}", "wb", mtime=0) as f:
                f.write(image.header.binaryblock + bytes(4) + np.asarray(image.dataobj).tobytes(order="F"))
        else:
            nib.save(image, f"{folder}/{name}")
        read = nib.load(f"{folder}/{name}")
        values = read.get_fdata(dtype=np.float64)
        print(name, len(values.shape), *values.shape, file=out)
        print(*[repr(float(v)) for v in read.affine[:3].ravel()], file=out)
        print(*[repr(float(v)) for v in values.ravel(order="F")], file=out)
