"""Small files of conversations and preferences about the weather."""

import json

CITIES = ("Oslo", "Kyoto", "Lima", "Paris")
SKIES = ("sunny", "rainy", "cloudy")


def talks(n=60):
    """Conversations of one or two questions, some with a system message."""
    found = []
    for i in range(n):
        city, sky = CITIES[i % 4], SKIES[i % 3]
        talk = [("user", f"It is {sky} in {city}, {i} degrees. How is it?"), ("assistant", f"It is {sky}.")]
        if i % 2:
            talk += [("user", "Where?"), ("assistant", f"In {city}.")]
        if i % 5 == 0:
            talk.insert(0, ("system", "Be short."))
        found.append([{"role": role, "content": content} for role, content in talk])
    return found


def talks_file(folder, rows=None, name="talks.jsonl"):
    """A file of conversations."""
    path = folder / name
    lines = [json.dumps({"messages": talk}) for talk in (rows or talks())]
    path.write_text("\n".join(lines) + "\n")
    return path


def preferences_file(folder, n=40):
    """A file of preferences, of which every second has a list of messages as its prompt."""
    path = folder / "preferences.jsonl"
    rows = []
    for i, talk in enumerate(talks(n)):
        prompt = talk[0]["content"] if len(talk) == 2 else talk[:-1]
        rows.append({"prompt": prompt, "chosen": talk[-1]["content"], "rejected": f"No idea {i % 7}."})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
