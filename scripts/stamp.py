"""Write into each agent's file the stamp by which `rlref probe` knows what a copy of it has changed.

python scripts/stamp.py            after any change of an agent in rlref/
python scripts/stamp.py --keep     for a release: the texts go into probes/originals/, for copies of this version
"""

import argparse
from pathlib import Path

from probes.changes import EARLIER, STAMP, stamp_of
from rlref.contract import AGENTS

FOLDER = Path(__file__).resolve().parent.parent / "rlref"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="keep the texts for later versions")
    options = parser.parse_args()
    for name in AGENTS:
        path = FOLDER / f"{name}.py"
        text, found = path.read_text(), None
        found = STAMP.search(text)
        if found is None or found[1] != name:
            raise SystemExit(f"{path.name} has no line '# Original: {name} ...'")
        stamp = stamp_of(text)
        text = text.replace(found[0], found[0].replace(found[2], stamp))
        path.write_text(text)
        if options.keep:
            EARLIER.mkdir(exist_ok=True)
            (EARLIER / f"{name}_{stamp}.txt").write_text(text)
        print(f"{path.name}: {stamp}")


if __name__ == "__main__":
    main()
