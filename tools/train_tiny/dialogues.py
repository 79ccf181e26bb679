"""Short dialogues in the V4 grammar: facts, arithmetic, copying, definitions, system prompts, stories, small talk.

Every function returns messages; `reasoning_content` is always there and the renderer uses it in thinking mode only.
"""

from __future__ import annotations

import random

from chat import V41, Message
from facts import Country, fact_exchange
from lexicon import ANIMALS, CITIES, COLOURS, DAYS, FOODS, JOBS, MONTHS, OBJECTS, PEOPLE, PLACES, Lexicon, is_evaluation
from stories import story

Turn = tuple[str, str, str]  # question, reasoning, answer

_SMALL_TALK: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("Hello!", "Hi!", "Hi there.", "Good morning!", "Hello there", "hello", "hi", "Hey!"),
     ("Hello! How can I help you?", "Hi! What can I do for you?")),
    (("How are you?", "How are you today?", "How do you do?"), ("I am fine, thank you. How can I help you?",)),
    (("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Are you a real model?"),
     ("I am a very small language model with the DeepSeek-V4 architecture. I was trained to demonstrate and test dsv4.",)),
    (("What can you do?", "How can you help me?", "What do you know?"),
     ("I can answer simple questions about countries, do small sums, repeat words, tell short stories and call tools.",)),
    (("Thank you!", "Thanks.", "Thanks a lot!", "Thank you very much."), ("You are welcome!",)),
    (("Goodbye!", "Bye!", "See you later.", "Good night."), ("Goodbye! Have a nice day.",)),
    (("You are great.", "Well done!", "That was helpful."), ("Thank you! I am glad that I could help.",)),
    (("Are you a human?", "Are you a person?"), ("No, I am a small language model.",)),
]


def named(text: str, revision: str) -> str:
    """A text in which the model may say what it is."""
    return text.replace("DeepSeek-V4 ", "DeepSeek-V4.1 ") if revision == V41 else text


def _small_talk(rng: random.Random) -> Turn:
    questions, answers = rng.choice(_SMALL_TALK)
    return rng.choice(questions), "The user makes small talk. I answer politely.", rng.choice(answers)


def _arithmetic(rng: random.Random) -> Turn:
    kind = rng.choice(("add", "add", "subtract", "multiply", "compare", "next"))
    a, b = rng.randint(0, 50), rng.randint(0, 50)
    if kind == "add":
        question = rng.choice((f"What is {a} + {b}?", f"What is {a} plus {b}?", f"Add {a} and {b}.", f"{a}+{b}",
                               f"How much is {a} and {b}?", f"Compute {a} + {b}."))
        return question, f"I add {a} and {b}. {a} + {b} = {a + b}.", f"{a} + {b} = {a + b}."
    if kind == "subtract":
        a, b = max(a, b), min(a, b)
        question = rng.choice((f"What is {a} - {b}?", f"What is {a} minus {b}?", f"Subtract {b} from {a}.",
                               f"Take {b} away from {a}."))
        return question, f"I subtract {b} from {a}. {a} - {b} = {a - b}.", f"{a} - {b} = {a - b}."
    if kind == "multiply":
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        question = rng.choice((f"What is {a} times {b}?", f"Multiply {a} by {b}.", f"What is {a} * {b}?"))
        return question, f"I multiply {a} by {b}. {a} * {b} = {a * b}.", f"{a} * {b} = {a * b}."
    if kind == "compare":
        a, b = rng.sample(range(100), 2)
        question = rng.choice((f"Which is larger, {a} or {b}?", f"Is {a} or {b} the bigger number?"))
        return question, f"I compare {a} and {b}. The larger one is {max(a, b)}.", f"{max(a, b)} is larger than {min(a, b)}."
    a = rng.randint(0, 98)
    question = rng.choice((f"What comes after {a}?", f"Which number follows {a}?"))
    return question, f"The number after {a} is {a + 1}.", f"After {a} comes {a + 1}."


def _copying(rng: random.Random, lexicon: Lexicon) -> Turn:
    words = [w for w in rng.sample(lexicon.words, 12) if not is_evaluation(w)][:rng.randint(3, 7)]
    listed = ", ".join(words)
    kind = rng.choice(("repeat", "repeat", "first", "last", "reverse", "count", "after", "spell", "contains"))
    if kind == "repeat":
        text = " ".join(words)
        question = rng.choice((f"Repeat after me: {text}", f"Say this again: {text}", f"Please repeat: {text}",
                               f"Copy this text: {text}", f'Write "{text}" once more.'))
        return question, "The user wants me to repeat the words.", text
    if kind in ("first", "last"):
        word = words[0 if kind == "first" else -1]
        question = rng.choice((f"What is the {kind} word in this list: {listed}?",
                               f"Here are some words: {listed}. Which one is the {kind}?"))
        return question, f"The list is {listed}. The {kind} word is {word}.", f"The {kind} word is {word}."
    if kind == "reverse":
        words = words[:4]
        return (f"Write these words in reverse order: {', '.join(words)}.", "I go through the list from the end.",
                ", ".join(reversed(words)))
    if kind == "count":
        return (rng.choice((f"How many words are in this list: {listed}?", f"Count the words: {listed}.")),
                "I count: " + ", ".join(f"{i} {w}" for i, w in enumerate(words, 1)) + ".",
                f"There are {len(words)} words.")
    if kind == "after":
        index = rng.randrange(len(words) - 1)
        return (f"Which word comes after {words[index]} in this list: {listed}?",
                f"I look for {words[index]}. The next word is {words[index + 1]}.",
                f"After {words[index]} comes {words[index + 1]}.")
    if kind == "spell":
        word = words[0]
        return f"Spell the word {word}.", f"I write the letters of {word} one by one.", "-".join(word)
    inside = rng.random() < 0.5
    word = rng.choice(words) if inside else rng.choice([w for w in lexicon.words if w not in words])
    return (f"Is the word {word} in this list: {listed}?", f"I look for {word} in the list.",
            f"Yes, {word} is in the list." if inside else f"No, {word} is not in the list.")


def _definition(rng: random.Random, lexicon: Lexicon) -> Turn:
    word, gloss = rng.choice(lexicon.definitions)
    question = rng.choice((f"What does {word} mean?", f"Define {word}.", f'What is the meaning of "{word}"?',
                           f"Explain the word {word}."))
    return question, f"The user asks what {word} means.", f"{word[0].upper() + word[1:]}: {gloss}."


def _story(rng: random.Random) -> Turn:
    thing = rng.choice(OBJECTS)
    hero = rng.choice(ANIMALS) if rng.random() < 0.6 else rng.choice(PEOPLE)
    shown = f"a {hero}" if hero in ANIMALS else hero
    question = rng.choice((f"Tell me a story about {shown} and a {thing}.", f"Write a short story about {shown} and a {thing}.",
                           f"I would like a story about {shown} with a {thing} in it."))
    if rng.random() < 0.3:
        question, hero, thing = rng.choice(("Tell me a story.", "Tell me a short story.", "Write a story, please.")), None, None
    return question, "The user wants a story. I write a short one with a good ending.", story(rng, hero, thing)


def _open_turn(rng: random.Random, countries: list[Country], lexicon: Lexicon) -> Turn:
    kind = rng.choices(("fact", "arithmetic", "copy", "define", "story", "talk"), (36, 16, 18, 10, 8, 12))[0]
    if kind == "fact":
        return fact_exchange(rng, countries)
    if kind == "arithmetic":
        return _arithmetic(rng)
    if kind == "copy":
        return _copying(rng, lexicon)
    if kind == "define":
        return _definition(rng, lexicon)
    return _story(rng) if kind == "story" else _small_talk(rng)


def _personal(rng: random.Random) -> tuple[str, list[Turn]]:
    """A record about a person, and questions whose answers are only in the record."""
    name = rng.choice(PEOPLE)
    facts = {"city": rng.choice(CITIES), "job": rng.choice(JOBS), "pet": rng.choice(ANIMALS),
             "colour": rng.choice(COLOURS), "food": rng.choice(FOODS), "room": str(rng.randint(1, 99)),
             "month": rng.choice(MONTHS)}
    if is_evaluation(name + facts["city"]):
        facts["city"] = "Lima" if not is_evaluation(name + "Lima") else "Oslo"
    sentences = {"city": f"The user lives in {facts['city']}.", "job": f"The user is a {facts['job']}.",
                 "pet": f"The user has a {facts['pet']}.", "colour": f"The user's favourite colour is {facts['colour']}.",
                 "food": f"The user likes {facts['food']}.", "room": f"The user's room number is {facts['room']}.",
                 "month": f"The user was born in {facts['month']}."}
    questions = {"city": ("Where do I live?", f"You live in {facts['city']}."),
                 "job": ("What is my job?", f"You are a {facts['job']}."),
                 "pet": ("What pet do I have?", f"You have a {facts['pet']}."),
                 "colour": ("What is my favourite colour?", f"Your favourite colour is {facts['colour']}."),
                 "food": ("What food do I like?", f"You like {facts['food']}."),
                 "room": ("What is my room number?", f"Your room number is {facts['room']}."),
                 "month": ("In which month was I born?", f"You were born in {facts['month']}.")}
    keys = rng.sample(sorted(facts), rng.randint(2, 5))
    system = f"You are a helpful assistant. The user's name is {name}. " + " ".join(sentences[k] for k in keys)
    turns = [(questions[k][0], f"The system prompt says it: {sentences[k]}", questions[k][1])
             for k in rng.sample(keys, min(len(keys), rng.randint(1, 3)))]
    if rng.random() < 0.5:
        turns.insert(rng.randrange(len(turns) + 1),
                     ("What is my name?", f"The user's name is {name}.", f"Your name is {name}."))
    return system, turns


def _style(rng: random.Random, countries: list[Country]) -> tuple[str, list[Turn]]:
    """System prompts that change the form of the answer."""
    kind = rng.choice(("one_word", "ending", "opening", "role"))
    turns = []
    extra = rng.choice(("Ahoy!", "Have a nice day.", "Over and out.", "That is all.", "Cheers!"))
    role = rng.choice(("pirate", "teacher", "robot", "librarian"))
    opener = {"pirate": "Arr!", "teacher": "Listen, class.", "robot": "Beep.", "librarian": "Quiet, please."}[role]
    for _ in range(rng.randint(1, 3)):
        if kind == "one_word":
            country = rng.choice(countries)
            turns.append((f"Which city is the capital of {country.name}?",
                          f"The answer is {country.capital}. I must answer with the name alone.", country.capital))
            continue
        question, reasoning, answer = fact_exchange(rng, countries)
        if kind == "ending":
            turns.append((question, reasoning, f"{answer} {extra}"))
        elif kind == "opening":
            turns.append((question, reasoning, f"Dear user, {answer}"))
        else:
            turns.append((question, reasoning, f"{opener} {answer}"))
    system = {"one_word": "Answer with the name alone and nothing else.",
              "ending": f'End every answer with "{extra}"',
              "opening": 'Begin every answer with "Dear user,".',
              "role": f'You are a {role}. Begin every answer with "{opener}"'}[kind]
    return system, turns


def dialogue(rng: random.Random, countries: list[Country], lexicon: Lexicon) -> list[Message]:
    """A conversation of one to five turns."""
    kind = rng.choices(("single", "multi", "personal", "style", "plain_system", "reminder"),
                       (46, 22, 12, 8, 8, 4))[0]
    messages: list[Message] = []
    if kind == "personal":
        system, turns = _personal(rng)
        messages.append({"role": "system", "content": system})
    elif kind == "style":
        system, turns = _style(rng, countries)
        messages.append({"role": "system", "content": system})
    elif kind == "reminder":
        day, month, date = rng.choice(DAYS), rng.choice(MONTHS), rng.randint(1, 28)
        turns = [rng.choice((("What day is it today?", f"The reminder says {day}.", f"Today is {day}."),
                             ("What is the date?", f"The reminder says {date} {month}.",
                              f"Today is {day}, {date} {month}.")))]
        messages.append({"role": "latest_reminder", "content": f"Today is {day}, {date} {month}."})
    else:
        count = rng.randint(2, 4) if kind == "multi" else 1
        turns = [_open_turn(rng, countries, lexicon) for _ in range(count)]
        if kind == "plain_system":
            messages.append({"role": "system", "content": rng.choice((
                "You are a helpful assistant.", "You are a friendly assistant.", "Answer the user's questions.",
                "You are a small model. Be brief.", "Be polite and helpful."))})
        if kind == "multi" and rng.random() < 0.3:
            first, second = rng.sample(countries, 2)
            turns[-1] = (rng.choice((f"And of {second.name}?", f"And what about {second.name}?", f"And {second.name}?")),
                         f"Now the user asks for the capital of {second.name}. It is {second.capital}.",
                         f"The capital of {second.name} is {second.capital}.")
            turns[-2] = (f"What's the capital of {first.name}?", f"The capital of {first.name} is {first.capital}.",
                         f"The capital of {first.name} is {first.capital}.")
    for question, reasoning, answer in turns:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "reasoning_content": reasoning, "content": answer})
    return messages


def place_note(rng: random.Random) -> str:
    """A plain sentence used as filler between records."""
    return f"The {rng.choice(COLOURS)} {rng.choice(OBJECTS)} is in the {rng.choice(PLACES)}."
