"""Short templated stories: simple prose with people, animals, places and a plain ending."""

from __future__ import annotations

import random

from lexicon import ANIMALS, COLOURS, FOODS, JOBS, MOODS, OBJECTS, PEOPLE, PLACES


def _article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def story(rng: random.Random, hero: str | None = None, thing: str | None = None) -> str:
    """One story of five to nine sentences."""
    thing = thing or rng.choice(OBJECTS)
    animal = hero in ANIMALS or (hero is None and rng.random() < 0.5)
    mood = rng.choice(MOODS)
    place, other_place = rng.sample(PLACES, 2)
    colour, food = rng.choice(COLOURS), rng.choice(FOODS)
    friend = rng.choice(PEOPLE)
    if animal:
        kind = hero or rng.choice(ANIMALS)
        opening = f"Once upon a time there was {_article(mood)} {kind} who lived near the {place}."
        name, he, his, him = f"the {kind}", "it", "its", "it"
    else:
        name = hero or rng.choice(PEOPLE)
        he, his, him = rng.choice((("he", "his", "him"), ("she", "her", "her")))
        opening = rng.choice((f"{name} was {_article(mood)} {rng.choice(JOBS)} who lived near the {place}.",
                              f"There once was {_article(mood)} {rng.choice(JOBS)} called {name}, who lived by the {place}."))
    cap = name[0].upper() + name[1:]
    lost = rng.choice((f"One morning {name} found {_article(colour)} {thing} in the grass.",
                       f"One evening {name} lost {_article(colour)} {thing}.",
                       f"One day {name} wanted {_article(colour)} {thing} more than anything else."))
    middle = [
        f"{cap} walked to the {other_place} and looked around.",
        f"On the way {he} met {friend}, who was carrying some {food}.",
        rng.choice((f'"Have you seen my {thing}?" asked {name}.', f'"Is this your {thing}?" asked {name}.',
                    f'"Can you help me?" asked {name}.')),
        rng.choice((f'"No," said {friend}, "but I will help you."', f'"Let us look together," said {friend}.',
                    f'"Yes, of course," said {friend}.')),
        rng.choice((f"They searched the whole {other_place} until the sun went down.",
                    f"They shared the {food} and talked for a long time.",
                    "It began to rain, so they waited under a big tree.")),
    ]
    keep = sorted(rng.sample(range(len(middle)), rng.randint(3, 5)))
    ending = [
        rng.choice((f"In the end the {thing} was safe at home near the {place}.",
                    f"At last {name} carried the {thing} back to the {place}.",
                    f"At night {name} put the {colour} {thing} on the table and smiled.")),
        rng.choice((f"From that day on {name} and {friend} were good friends.",
                    f"{cap} was not {mood if mood in ('lonely', 'tired', 'hungry') else 'sad'} any more.",
                    f"And {friend} never forgot {him}.", f"{cap} thanked {friend} with all {his} heart.")),
    ]
    return " ".join([opening, lost, *(middle[i] for i in keep), *ending])
