"""What the built-in generator composes prompts from."""

from __future__ import annotations


def _words(text: str, separator: str | None = "|") -> tuple[str, ...]:
    """The different entries of a text, line ends being separators too."""
    parts = text.split() if separator is None else text.replace("\n", separator).split(separator)
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


TOPICS = _words(
    """
    bread baking|urban gardening|night photography|chess openings|public libraries|rain barrels
    marathon training|beekeeping|bicycle repair|folk music|tidal power|map reading|home brewing|knitting
    volcanoes|museum visits|learning to swim|coral reefs|paper recycling|street markets|winter hiking
    sailing knots|watch making|comets|second-hand books|school lunches|cloud types|railway travel
    wood carving|tea ceremonies|bird migration|first aid|board games|solar panels|mountain huts
    stage fright|compost heaps|typewriters|fermentation|lighthouses|budgeting|job interviews
    sleep habits|indoor plants|city trams|origami|wind turbines|poetry|dog training|water filters
    tax returns|carpentry|astronomy clubs|freshwater fish|glass blowing|radio plays|letter writing
    moving house|allotments|rock climbing|medieval castles|noise at work|spice trade|fire safety
    electric cars|language exchange|school gardens|video calls|snow shovelling|pottery|flood protection
    mosses|crossword puzzles|public speaking|cheese making|bridge building|desert travel|family recipes
    shared flats|data backups|paper maps|road cycling|harbour cranes|opera|mushroom picking
    thermal insulation|kites|glaciers|night shifts|dentist visits|volunteering|camping stoves
    violin practice|roof repairs|weather forecasts
    """
)

CHAT_ASKS = (
    "Give me five practical tips about {topic}, one sentence each.",
    "I know nothing about {topic}. Where should I begin, and what mistakes do beginners make?",
    "What are the advantages and disadvantages of {topic}? Answer in two short paragraphs.",
    "Write a friendly message to a neighbour who would like to hear more about {topic}.",
    "Explain {topic} to a child of {age} in simple words.",
    "My friend thinks that {topic} is a waste of time. Give me three polite arguments against that.",
    "Tell me a short story of about {words} words in which {topic} plays a part.",
    "Make a plan for {days} days that brings me closer to {topic}.",
    "Which questions should I ask an expert on {topic}? List {count}.",
    "Compare {topic} with {other}: what do they have in common, and where do they differ?",
    "I have {money} euros and one free weekend. How can I spend both on {topic}?",
    "Describe a typical day of somebody whose work is {topic}.",
    "What has changed about {topic} in the last fifty years?",
    "Write an invitation to a meeting of a club for {topic} on a {weekday} evening.",
)
AUDIENCES = ("a beginner", "a colleague in a hurry", "a school newspaper", "an older relative", "a tourist")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NAMES = _words(
    "Amara Bao Carla Dmitri Elif Farid Greta Hana Ivo Jonas Kemal Lucia Mateo Nadia Oskar Priya Quentin Rosa "
    "Samir Tove Uma Viktor Wanda Xenia Yusuf Zofia",
    separator=None,
)
PLACES = _words(
    "the old harbour|Alder Street|the northern district|the river park|Linden Square|the hill village|"
    "the railway yard|the market hall|the valley road|the university quarter|the island|the mill pond"
)
THINGS = _words(
    "a swimming pool|the bus line 14|a community kitchen|the footbridge|a library branch|the recycling centre|"
    "a youth club|the tram depot|a cycle path|the playground|an open-air cinema|the fire station|a clinic|"
    "the weekly market|a solar roof|the night train"
)

LANGUAGES_OF_CODE = ("Python", "JavaScript", "TypeScript", "Go", "Rust", "Java", "C", "C++", "Ruby", "Kotlin")
CODE_TASKS = _words(
    """
    reverses the words of a sentence|counts how often each letter occurs in a text
    checks whether a number is prime|merges two sorted lists into one
    finds the longest common prefix of a list of words|parses a date in the form 2024-05-17
    removes duplicates from a list and keeps the order|converts a Roman numeral to a number
    computes the median of a list|checks whether brackets in a text are balanced
    groups words that are anagrams of each other|rotates a matrix by 90 degrees
    finds the two numbers in a list that add up to a target|flattens a nested list
    computes the n-th Fibonacci number|splits a text into lines of at most 72 characters
    validates an e-mail address in a simple way|reads a CSV file and sums one column
    implements binary search|finds the shortest path in an unweighted graph
    encodes a text with run-length encoding|converts seconds to hours, minutes and seconds
    shuffles a list without a library function|computes a moving average
    finds the first character that does not repeat|checks whether a word is a palindrome
    transposes a matrix|counts the words of a file|finds all files of a folder with a given ending
    retries a function up to three times|implements a queue with two stacks
    keeps the ten largest values of a stream|computes the greatest common divisor
    formats a number of bytes for people|finds the overlap of two time intervals
    merges overlapping intervals|generates all permutations of a list
    sorts words by length and then by alphabet|computes the edit distance of two words
    implements a cache with a limited size|removes vowels from a text|draws a triangle of stars
    adds two numbers given as text|finds the missing number from 1 to n
    checks whether a year is a leap year|converts a decimal number to binary|computes compound interest
    simulates rolling two dice|finds the most frequent element|deletes a node of a linked list
    validates a credit card number with the Luhn rule|finds the depth of a binary tree
    prints a calendar of a month
    """
)
CODE_ASKS = (
    "Write a {language} function that {task}. Return only the code.",
    "Write a {language} function that {task}, and explain it in three sentences.",
    "Show a {language} program that {task}, with two examples of its use.",
    "Write unit tests in {language} for a function that {task}.",
    "A function in {language} that {task} is too slow for {size} entries. Show a simple version and a faster one.",
    "How would you write a {language} function that {task} if the input may be empty or wrong? Show the code.",
    "Write a {language} function named {name} that {task}, with a comment on every step.",
    "Translate this description into {language} code, line by line: the function {task}.",
)

PASSAGE_OPENINGS = (
    "On {weekday} the council discussed {thing} near {place}.",
    "{name} has spent {years} years planning {thing} for {place}.",
    "A report published in {month} says that {thing} at {place} costs {money} euros a year.",
    "Residents of {place} were surprised to read that {thing} will close after {years} years.",
    "{thing_cap} in {place} was opened {years} years ago and has been full ever since.",
    "When {name} moved to {place}, {thing} was the first thing to be repaired.",
)
PASSAGE_MIDDLES = (
    "About {count} people came to the meeting, and most of them spoke in favour.",
    "{name} warned that the work would take {months} months and block the road to the school.",
    "The city wants to pay {share} per cent of the price and hopes for donations.",
    "In the past year {count} visitors were counted, {share} per cent more than before.",
    "{name} called the plan too expensive and proposed to start with a smaller version.",
    "A survey among {count} households showed that {share} per cent would use it every week.",
    "The ground is wet, so that the builders need {months} months longer than planned.",
    "{name}, who lives next door, asked for quiet hours between ten and seven.",
    "Experts measured the noise on {weekday} and found it lower than expected.",
    "Volunteers have collected {money} euros, of which a third is already spent.",
    "The first design was rejected because it left too little room for bicycles.",
    "Schools in the area sent {count} letters with their own ideas.",
    "An earlier attempt {years} years ago failed when the main sponsor withdrew.",
    "{name} offered to repair the roof without pay if the city buys the material.",
)
PASSAGE_ENDINGS = (
    "A decision is expected in {month}.",
    "The next meeting takes place on {weekday} at {hour} o'clock.",
    "{name} will publish all figures before {month}.",
    "Until then everything stays as it is.",
    "Whoever wants to help can call {name} in the evening.",
)
SUMMARY_ASKS = (
    "Summarise the following text in {n} sentences.",
    "Write a headline and one sentence for this text.",
    "List the {n} most important facts of the following text as bullet points.",
    "Shorten the following text to about half of its length without losing a number.",
    "Explain to {audience} what the following text is about.",
    "Which problem does the following text describe, and what is proposed? Answer briefly.",
)
MONTHS = _words(
    "January February March April May June July August September October November December",
    separator=None,
)

TRANSLATION_LANGUAGES = ("French", "German", "Spanish", "Italian", "Portuguese", "Dutch", "Polish", "Swedish")
TRANSLATION_ASKS = (
    "Translate into {language}:",
    "Translate the following text into {language} and keep the tone friendly:",
    "How does one say this in {language}? Give only the translation.",
    "Translate into {language}, then list three difficult words with their meaning:",
)

STRUCTURED_ASKS = (
    "Extract the data of the following note as a JSON object with the keys {keys}.",
    "Turn the following note into a YAML document with the keys {keys}.",
    "Write the following note as one row of a CSV file with the header {keys}.",
    "Make a Markdown table with the columns {keys} from the following note.",
    "Return a JSON list with one object per person in the following note; the keys are {keys}.",
)
ITEMS = _words(
    "apples lamps chairs notebooks kettles tents brushes batteries candles gloves umbrellas mugs hammers "
    "blankets radios plates",
    separator=None,
)
