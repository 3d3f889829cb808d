"""Scores of plain forecasts of next month's zonal wind (examples/winds), in two measures, with NumPy and SciPy.

  python3 tests/data/winds_scores.py [monthly_navy_winds.cdf]

The last 24 of 132 months are held out of every statistic; scored are the last 23, whose month before is held out, too.
  alike:   the root of the mean square error over all points and months
  by area: points weighted by the cosine of the latitude; the root for each month, then the mean (as WeatherBench)
"""

import sys

import numpy as np
from scipy.io import netcdf_file

FILE = sys.argv[1] if len(sys.argv) > 1 else "/usr/share/ferret-vis/data/monthly_navy_winds.cdf"
TRAIN = 108
with netcdf_file(FILE, "r", mmap=False) as data:
    wind = np.array(data.variables["UWND"].data, float)
    area = np.cos(np.deg2rad(data.variables["FNOCY"].data)).clip(0)[None, :, None]
months = len(wind)
test = np.arange(TRAIN + 1, months)
phase = np.arange(months) % 12


def show(name, error):
    by_area = (error**2 * area).mean((1, 2)) / area.mean()
    print(f"{name:<52} {np.sqrt((error**2).mean()):8.3f} {np.sqrt(by_area).mean():8.3f}")


def climatology(harmonics):
    """Monthly means of the training part, or their fit by a constant and so many harmonics."""
    if harmonics == 0:
        return np.stack([wind[:TRAIN][phase[:TRAIN] == p].mean(0) for p in range(12)])
    angle = 2 * np.pi * np.arange(12) / 12
    basis = np.stack([np.ones(12)] + [f(k * angle) for k in range(1, harmonics + 1) for f in (np.cos, np.sin)], 1)
    fit = np.linalg.lstsq(basis[phase[:TRAIN]], wind[:TRAIN].reshape(TRAIN, -1), rcond=None)[0]
    return (basis @ fit).reshape(12, *wind.shape[1:])


print(f"{'RMSE of U in m/s':<52} {'alike':>8} {'by area':>8}")
show("time mean", wind[test] - wind[:TRAIN].mean(0))
show("persistence", wind[test] - wind[test - 1])
for harmonics in (0, 1, 2, 3):
    anomaly = wind - climatology(harmonics)[phase]
    x, y = anomaly[: TRAIN - 1], anomaly[1:TRAIN]
    of = f"climatology of {harmonics} harmonics" if harmonics else "climatology of monthly means"
    show(of, anomaly[test])
    point = (x * y).sum(0) / (x * x).sum(0)
    zonal = ((x * y).sum((0, 2)) / (x * x).sum((0, 2)))[:, None]
    show("  damped anomaly, a coefficient per latitude", anomaly[test] - zonal * anomaly[test - 1])
    show("  damped anomaly, a coefficient per point", anomaly[test] - point * anomaly[test - 1])
