"""The published training program of MACE (mace-torch) beside `tessera train mace`: same first weights, same batches.

  mace_train.py DIR SEED [option of mace_run_train...]

DIR holds train.xyz, valid.xyz, test*.xyz and, if batches are to be given, order.txt: for each epoch a line with the places of
the structures in train.xyz. Writes DIR/start.model before the first step; prints `start`, then `epoch N E F` (RMSE of energies
per atom in meV and of forces in meV/A on the validation file), last `set NAME E F` for each file, of the model kept.
"""

import glob
import json
import os
import sys
import threading
import time
import warnings

warnings.filterwarnings("ignore")


answers = os.fdopen(os.dup(1), "w")


def say(*words):
    print(*words, file=answers, flush=True)


def follow(path, stop):
    """Prints the scores of each epoch as the program notes them in its file of results."""
    at = 0
    while True:
        last = stop.is_set()
        for name in glob.glob(path + "/results/*_train.txt"):
            with open(name) as f:
                f.seek(at)
                for line in iter(f.readline, ""):
                    if not line.endswith("\n"):
                        break
                    at = f.tell()
                    row = json.loads(line)
                    if row.get("mode") == "eval" and row["epoch"] is not None:
                        say("epoch", row["epoch"], 1e3 * row["rmse_e_per_atom"], 1e3 * row["rmse_f"])
        if last:
            return
        time.sleep(0.5)


class Order:
    """Epochs that go through the training structures as the file says."""

    def __init__(self, path):
        self.epochs = [[int(x) for x in line.split()] for line in open(path)]
        self.next = iter(self.epochs)

    def __iter__(self):
        return iter(next(self.next))

    def __len__(self):
        return len(self.epochs[0])


def score(model, path, r_max):
    """RMSE of energies per atom and forces over a file, in eV."""
    import ase.io
    import numpy as np
    import torch
    from mace import data
    from mace.tools import torch_geometric, utils

    frames = ase.io.read(path, ":")
    table = utils.AtomicNumberTable([int(z) for z in model.atomic_numbers])
    sets = [data.AtomicData.from_config(data.config_from_atoms(a), z_table=table, cutoff=r_max) for a in frames]
    e, f = [], []
    for batch in torch_geometric.dataloader.DataLoader(sets, batch_size=10, shuffle=False):
        out = model(batch.to_dict())
        e.append(out["energy"].detach().numpy())
        f.append(out["forces"].detach().numpy())
    atoms = np.array([len(a) for a in frames])
    e = (np.concatenate(e) - [a.info["REF_energy"] for a in frames]) / atoms
    f = np.concatenate(f) - np.concatenate([a.arrays["REF_forces"] for a in frames])
    return np.sqrt(np.mean(e**2)), np.sqrt(np.mean(f**2))


def main():
    folder, seed = sys.argv[1:3]
    log = os.open(folder + "/peer.txt", os.O_CREAT | os.O_WRONLY)
    for stream in (1, 2):  # what the program itself has to say
        os.dup2(log, stream)
    import torch
    from mace.cli import run_train
    from mace.tools import arg_parser

    configure = run_train.configure_model
    train = run_train.tools.train

    def start(*args, **kwargs):
        model, output = configure(*args, **kwargs)
        torch.save(model, folder + "/start.model")
        say("start")
        return model, output

    def training(*args, **kwargs):
        if os.path.exists(folder + "/order.txt"):
            kwargs["train_loader"].batch_sampler.sampler = Order(folder + "/order.txt")
        return train(*args, **kwargs)

    run_train.configure_model = start
    run_train.tools.train = training
    work = folder + "/peer"
    args = arg_parser.build_default_arg_parser().parse_args(
        ["--name", "peer", "--work_dir", work, "--train_file", folder + "/train.xyz", "--valid_file", folder + "/valid.xyz"]
        + ["--seed", seed, "--device", "cpu", "--plot", "False", "--log_level", "WARNING"]
        + sys.argv[3:]
    )
    r_max = args.r_max
    stop = threading.Event()
    follower = threading.Thread(target=follow, args=(work, stop))
    follower.start()
    try:
        run_train.run(args)
    finally:
        stop.set()
        follower.join()
    made = glob.glob(work + "/peer_stagetwo.model") or glob.glob(work + "/peer.model")
    model = torch.load(made[0], map_location="cpu", weights_only=False)
    for path in sorted(glob.glob(folder + "/*.xyz")):
        e, f = score(model, path, r_max)
        say("set", os.path.basename(path)[:-4], 1e3 * e, 1e3 * f)


main()
