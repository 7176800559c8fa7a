"""A key table: a topic as a mapping from each key to its newest message, with a stream of changes and a compaction."""

import tempfile
from pathlib import Path

import mqstore


def main(path: Path) -> None:
    with mqstore.open(path, "create") as store:
        store.create_topic("settings", attributes={"cleanup.policy": "COMPACTION"})
        settings = store.table("settings")
        for size in range(10, 15):
            settings["font-size"] = str(size).encode()
        settings["theme"] = b"dark"
        print(settings["font-size"].text(), settings["theme"].text(), "language" in settings)

        changes = settings.changes(timeout=0)
        settings["language"] = b"en"
        del settings["theme"]
        for change in changes:
            print(change.key, "->", change.message.text() if change.message else "deleted")

        report = store.compact()
        print("messages:", report.messages_before, "before the compaction,", report.messages_after, "after it")

    with mqstore.open(path) as reader:
        print({key: message.text() for key, message in sorted(reader.table("settings").items())})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder, "store"))
