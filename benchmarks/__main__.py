import sys

from mdispatch.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "bench")
    main()
