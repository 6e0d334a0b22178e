"""What the wider makers of code and chat prompts compose from."""

from __future__ import annotations


def _lines(text: str) -> tuple[str, ...]:
    """The different entries of a text, separated by bars and line ends."""
    parts = text.replace("\n", "|").split("|")
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


MORE_TASKS = _lines(
    """
    normalises the spaces of a text|finds the second largest number of a list|groups orders by customer
    turns a nested dictionary into dotted keys|rounds amounts of money to five cents
    parses a duration such as 1h30m|compares two version numbers
    masks all but the last four digits of a number|merges two dictionaries deeply
    finds gaps in a list of dates|splits a list into chunks of equal size
    computes the moving median of a stream|converts a colour from hex to RGB
    checks whether two strings are rotations of each other|sorts files by their age
    reads key=value lines and ignores comments|finds the longest run of equal values
    computes a checksum of a file|limits how often it is called per second
    writes a table with aligned columns|computes working days between two dates
    removes HTML tags from a text|finds the most similar word in a list
    counts islands in a grid of zeros and ones|evaluates an arithmetic expression with brackets
    assigns seats so that friends sit together|rotates log files|computes the convex hull of points
    finds all cycles in a directed graph|checks a sudoku board|packs items into boxes of limited weight
    converts between Celsius and Fahrenheit|validates an IBAN|expands ranges such as 1-3,7
    formats a list as an English enumeration|computes percentiles without sorting twice
    resolves relative paths|finds overlapping bookings|simulates a queue at a counter
    draws a bar chart with characters
    """
)
LANGUAGES = _lines("Python|JavaScript|TypeScript|Go|Rust|Java|C|C++|Ruby|Kotlin|C#|Swift|PHP|Scala|Lua|Bash")
TYPED = _lines("Python|TypeScript|Go|Rust|Java|C++|Kotlin|C#|Swift|Scala")
CODE_ASKS = (
    "Write a {language} function that {task}. It must {limit}.",
    "I need a {language} function that {task}, {setting}. Show the code and one example call.",
    "Write a {language} function that {task}, and make sure that it can {limit}. Explain the main idea first.",
    "Review this requirement and implement it in {language}: the function {task}, {setting}. Name two edge cases.",
    "Show how you would test a {language} function that {task} and must {limit}.",
    "Give two {language} versions of a function that {task}: a short one, and one that can {limit}.",
    "Write a {language} module with a function that {task}, {setting}, and a main part that calls it.",
    "A colleague asks for a {language} function that {task}. Write it with comments, {setting}.",
)
LIMITS = _lines(
    """
    work in one pass over the input|use no more than constant extra memory
    raise a clear error for wrong input|keep the order of equal entries|treat an empty input as valid
    be safe to call from several threads|avoid recursion|use recursion|run in O(n log n)
    leave its arguments unchanged|handle Unicode text|read its input lazily|accept an optional default value
    give the same result on every run|log every decision|stop early when the answer is known
    work without any imports|report progress every thousand entries|support negative numbers
    ignore upper and lower case
    """
)
SETTINGS = _lines(
    """
    for a script that runs every night|for a small web service|as part of a game
    for pupils who learn to program|for data of several gigabytes|for a device with little memory
    for an accounting program|for a chat bot|with full type annotations|in a functional style
    in an object-oriented style|with a docstring in plain English|for a command-line tool
    for a library that others use|for a weather station|for a shop's stock list
    """
)
ENTITIES: dict[str, tuple[str, ...]] = {
    "Book": _lines("title|author|isbn|year|pages|price|shelf|language|publisher|rating"),
    "Order": _lines("number|customer|date|items|total|discount|status|currency|address|note"),
    "Employee": _lines("name|department|salary|start_date|manager|email|office|level|hours_per_week|skills"),
    "Flight": _lines("code|origin|destination|departure|arrival|gate|seats|airline|delay_minutes|aircraft"),
    "Patient": _lines(
        "name|birthday|blood_type|allergies|doctor|room|admitted_on|diagnosis|insurance|weight_kg"
    ),
    "Recipe": _lines("name|ingredients|steps|minutes|servings|calories|difficulty|cuisine|author|photo"),
    "Invoice": _lines("number|issued_on|due_on|lines|net|tax_rate|paid|customer|reference|currency"),
    "Ticket": _lines("id|subject|priority|assignee|opened_at|closed_at|status|labels|customer|hours_spent"),
    "Sensor": _lines("id|location|unit|interval_s|last_value|battery|calibrated_on|maximum|minimum|firmware"),
    "Student": _lines("name|number|courses|grades|year|advisor|email|credits|scholarship|birthday"),
    "Vehicle": _lines("plate|maker|model|mileage|fuel|owner|inspected_on|colour|seats|price"),
    "Match": _lines("home|guest|date|home_goals|guest_goals|stadium|referee|spectators|season|cards"),
    "Account": _lines("iban|owner|balance|currency|opened_on|limit|interest|transactions|branch|blocked"),
    "Room": _lines("number|floor|beds|price_per_night|view|occupied|guest|cleaned_at|smoking|area_m2"),
    "Song": _lines("title|artist|album|seconds|genre|year|plays|rating|lyrics|label"),
    "Parcel": _lines("code|sender|receiver|weight_g|sent_on|delivered_on|station|insured|size|price"),
}
OPERATIONS = _lines(
    """
    returns a copy with one field changed|can be written to JSON and read back
    compares two of them by {field}|checks that {field} is valid|prints itself as one line of a table
    sums {field} over a list of them|finds the newest of a list by {field}|groups a list of them by {field}
    hides {field} when it is printed|notes every change of {field} with its time
    is created from a line of a CSV file|sorts a list of them by {field}
    """
)
CLASS_ASKS = (
    "Write a {language} class {entity} with the fields {fields}, and a method that {operation}.",
    "Model {article} {entity} with {fields} in {language}. Add a function that {operation}, and show its use.",
    "Here are the fields of {article} {entity}: {fields}. Write a {language} type for it that {operation}.",
    "Write tests in {language} for a class {entity} with {fields} that {operation}.",
)
SQL_ASKS = (
    "Given a table {table} with the columns {columns}, write an SQL query that {goal}.",
    "Write an SQL query over {table}({columns}) that {goal}. Explain each clause.",
    "The table {table} has the columns {columns}. Which index would help a query that {goal}? Show both.",
    "Write a view on {table}({columns}) that {goal}.",
)
SQL_GOALS = _lines(
    """
    lists the {number} rows with the largest {field}|counts the rows per {field}
    finds {field} values that occur twice|shows the rows whose {field} is missing
    gives the average of {field} per {other}|lists the newest row per {other}
    compares each {field} with the one before it|returns the rows where {field} is above the average
    shows the share of each {other} in the total of {field}
    deletes rows whose {field} is older than {number} days
    joins it with itself to find pairs with the same {field}|ranks the rows by {field} within each {other}
    """
)
PROGRAM_ASKS = (
    "Write a {language} program that reads {source} with the columns {columns} and {report}.",
    "I have {source} with the columns {columns}. Write a {language} script that {report}.",
    "Sketch, then write, a {language} command-line tool: its input is {source} with {columns}; it {report}.",
)
SOURCES = _lines(
    "a CSV file|a JSON Lines file|a tab-separated file|a log file|standard input|a spreadsheet export|"
    "a web API's answer"
)
REPORTS = _lines(
    """
    prints the {number} largest values of {field}|writes one file per {other}
    warns about rows without {field}|draws {field} over time with characters
    replaces wrong values of {field} by the median|prints a summary per {other}
    finds duplicates by {field} and {other}|converts it to Markdown, sorted by {field}
    splits it into {number} equal parts|checks every row and lists all problems with line numbers
    """
)

PERSONAS = _lines(
    """
    a nurse on night shifts|a retired teacher|a student in the first term|a single father of two
    a new manager|a gardener|a beginner|a taxi driver|a shy teenager|a busy lawyer|an exchange student
    a grandmother of five|a software developer|a waiter|a long-distance runner|a librarian|a farmer
    a musician without work|a nervous traveller|a volunteer fire fighter|a shop owner in a small town
    a person who uses a wheelchair|a ten-year-old|an amateur painter
    """
)
MORE_TOPICS = _lines(
    """
    growing tomatoes|saving electricity|learning the piano|a first marathon|planning a wedding
    buying a used car|a book club|cooking for ten people|long train journeys|choosing a school
    repairing clothes|keeping bees in a city|stargazing|learning Portuguese|a career change
    living without a car|home offices|quitting coffee|city pigeons|old photographs
    caring for an ageing parent|a vegetable box|choir singing|a flat with thin walls|winter swimming
    writing a diary|a family budget|jigsaw puzzles|travelling with a dog|a neighbourhood party
    learning to draw|electric bicycles|bread without yeast|moving to the countryside|raising twins
    a lost suitcase|public gardens|the first week in a new job|sourdough|ferries|handwriting|sign language
    collecting stamps|community radio|tidying up|small talk|exam nerves|sleeping badly
    a night at the theatre|repairing a bicycle tyre|river cruises
    """
)
CHAT_ASKS = (
    "I am {persona}. What should I know about {topic}? {manner}",
    "As {persona} I have become interested in {topic}. Suggest a first step for this week. {manner}",
    "Explain to me, {persona}, why people care about {topic}. {manner}",
    "I am {persona} and have two hours a week for {topic}. Make me a realistic plan. {manner}",
    "Which mistakes would {persona} make with {topic}, and how can they be avoided? {manner}",
    "Imagine {persona} talking with a friend about {topic}. Write the conversation. {manner}",
    "I am {persona}, and I am disappointed with {topic}. Help me to see it from another side. {manner}",
    "Give {persona} three reasons for and three against {topic}. {manner}",
)
MANNERS = _lines(
    """
    Answer in three short paragraphs.|Use bullet points.|Keep it under 120 words.
    Be honest about the disadvantages.|Write in a cheerful tone.|Ask me two questions at the end.
    Give one example for each point.|Avoid technical terms.|Finish with one sentence that sums it up.
    Use numbered steps.|Write as if you spoke to a good friend.|Mention what it costs.
    """
)
LETTER_KINDS = _lines("an email|a letter|a short message|a note for the door|a speech of one minute|a reply")
TONES = _lines("friendly|polite|firm but fair|apologetic|cheerful|formal|warm|brief")
RECIPIENTS = _lines(
    """
    my landlord|the head of the sports club|a customer|my sister|the school|my former boss|the town council
    a neighbour|a travel agency|my team|the bank|an old friend|the building manager|my aunt|a supplier
    the library|a job applicant|the newspaper|my flatmates|the hotel
    """
)
MATTERS = _lines(
    """
    the heating has been cold for three days|I cannot come to the meeting|the delivery was incomplete
    I would like to move the appointment|the noise after midnight has to stop
    I want to say thank you for the help|the invoice is wrong|I am looking for a room for the summer
    we plan a surprise party|a parcel was left in the rain|I would like my deposit back
    the playground needs repair|I have found a lost key|the course should start later
    I want to cancel the contract|somebody damaged my bicycle|we need more volunteers
    I am sorry for the delay|the website shows old prices|I would like to recommend a colleague
    the bus no longer stops at the hospital|I should like to borrow the projector
    the dog from next door barks all day|my order arrived twice
    """
)
DETAILS = _lines(
    """
    the date|a phone number|a suggestion for a solution|a deadline|a compliment|the price|the reason
    an attached photo|a question|an offer of help|the next step|a small joke|who else is affected
    what happened before
    """
)
GENRES = _lines("funny|sad|mysterious|romantic|scary|adventurous|quiet|absurd|hopeful|historical")
HEROES = _lines(
    """
    a lighthouse keeper|a forgetful postman|two rival bakers|a girl who collects maps|an old ferry captain
    a clock maker|a violinist with a broken string|a park ranger|a night porter|a robot that waters plants
    a retired spy|a shy translator|a baker's apprentice|a window cleaner|three sisters|a chess player
    a river pilot|a cook at sea|a stubborn goat|a travelling dentist
    """
)
OBJECTS = _lines(
    """
    a letter that comes too late|a red umbrella|a key without a door|a borrowed coat|a locked suitcase
    an unfinished song|a map with a hole|a silver spoon|a wrong telephone number|a box of seeds
    a broken radio|a photograph of a stranger|a yellow bicycle|a bell that nobody rings
    a recipe in a foreign language|a lost glove
    """
)
SCENES = _lines(
    """
    a railway station at night|a village in the mountains|an island in winter|a market in summer
    a flooded town|a museum after closing time|a ship in fog|a hotel without guests|a school on the last day
    a desert road|a garden in the rain|a tower above the city|a hospital waiting room|an empty theatre
    a frozen lake
    """
)
ENDINGS = _lines(
    """
    it ends well|it ends with a question|it ends where it began|nobody gets what they wanted
    a secret comes out|an enemy becomes a friend|something small changes everything|the last line is a joke
    """
)
SITUATIONS = _lines(
    """
    a job interview|a driving test|a visit from my parents-in-law|an important exam|a move to another city
    a speech in front of fifty people|a first date|a long flight with a small child|an operation on my knee
    a negotiation about my salary|a half marathon|a dinner for eight|the sale of my flat
    a move in with my partner|a school play|a difficult talk with a colleague|a camping trip|a tax audit
    a reunion of my class|a new puppy
    """
)
OBSTACLES = _lines(
    """
    I have hardly any time|I am very nervous|I have little money|I have never done it before|I sleep badly
    I do not know whom to ask|my family does not help|I have put it off for weeks|I failed the last time
    I live far away|I am easily distracted|my computer is broken|the weather forecast is bad|I have a cold
    """
)
WISHES = _lines(
    """
    What should I do first?|Make a checklist for the days that are left.|What could go wrong, and what then?
    How do I stay calm?|What would you leave out?|Which three things matter most?
    Write me a plan for each day.|Tell me honestly whether I should postpone it.
    """
)
CHOICES = tuple(
    tuple(pair.split(" / "))
    for pair in _lines(
        """
        rent a flat in the centre / buy a small house outside|take the train / drive by night
        learn Spanish / learn to code|adopt a dog / adopt two cats
        study full time / work and study in the evening|go hiking / go to the seaside
        repair the old washing machine / buy a new one|cook every day / eat in the canteen
        join a gym / run in the park|keep my secure job / start a business with a friend
        give a party / travel alone for a week|buy books / borrow them|work from home / go to the office
        have one long holiday / have three short ones|move back to my village / stay here
        sell the car / keep the car for another year|tell my boss the truth / wait until the summer
        paint the wall / wallpaper it
        """
    )
)
"""Two things to choose between."""
VALUES = _lines(
    """
    my health|time with my family|saving money|the environment|learning something new|a quiet life
    good company|independence|reliability|fun|my career|good sleep
    """
)
