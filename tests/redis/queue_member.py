"""A process whose threads wait for one lock, one after the other: ``python queue_member.py URL KEY FILE``.

For each number on standard input another thread begins to wait. When it is served it adds the number to the file.
"""

import sys
import threading

from holdfast import Locks


def main(url: str, key: str, path: str) -> None:
    locks = Locks.from_url(url, window=30)  # nobody is passed over because the machine stood still
    threads = []

    def wait(number: str) -> None:
        with locks.hold(key, wait=60):
            with open(path, "a") as file:
                file.write(number + "\n")

    for line in sys.stdin:
        thread = threading.Thread(target=wait, args=(line.strip(),))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
