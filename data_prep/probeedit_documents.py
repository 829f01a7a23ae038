"""The text ProbeEdit edits: four annotated source documents and the vocabulary of their replaceable values.

Each source is read literally and as a template. Literally (`{kind:value}` stands for `value`, and lines that begin
with `+ ` are left out) it is one of the four fixed documents of the paper-size corpus. As a template, every
`{kind:value}` may be drawn anew from `VALUES[kind]`, blocks and lines may be chosen and reordered, and the `+ ` lines
(spares) are what an edit inserts or puts in another line's place. A blank line separates blocks; a block opens with
its title or heading. The kind `n` has no vocabulary: the digits of its value are drawn anew, as many as there were.

No text here contains a double quote, because instructions quote lines between double quotes.
"""

from __future__ import annotations


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


_MONTHS = _list("January, February, March, April, May, June, July, September, October, November")

VALUES: dict[str, tuple[str, ...]] = {
    "date": tuple(f"{day} {month}" for month in _MONTHS for day in range(2, 30, 3)),
    "time": tuple(f"{hour:02d}:{minute}" for hour in range(8, 18) for minute in ("00", "15", "30", "45")),
    "year": tuple(str(year) for year in range(1986, 2036)),
    "person": _list(
        "Dana, Tomás, Priya, Jonas, Helena, Marcus, Ingrid, Kofi, Yuki, Leila, Oscar, Bianca, Rafael, Signe, Amara, "
        "Pavel, Noor, Elliot, Freya, Hassan, Joana, Kiran, Lucia, Mateus, Nadia, Olga, Quentin, Rosa, Stefan, "
        "Tamsin, Umar, Vera, Wanda, Xavier, Zoë"
    ),
    "team": _list(
        "Platform, Billing, Search, Mobile, Security, Payments, Logistics, Growth, Support, Research, Identity"
    ),
    "room": _list("Room Cedar, Room Maple, the glass room, the library, Studio 2, the annex, Room Birch"),
    "weekday": _list("Monday, Tuesday, Wednesday, Thursday, Friday"),
    "feature": _list(
        "invoice export, login page, search filter, audit log, import wizard, mobile app, price table, admin panel, "
        "help centre, report builder, usage dashboard, checkout flow, consent banner"
    ),
    "city": _list(
        "Lisbon, Gothenburg, Turin, Krakow, Leeds, Ghent, Porto, Tampere, Graz, Bilbao, Aarhus, Utrecht, Nantes"
    ),
    "vendor": _list("Northwind, Halcyon, Bluepeak, Ferrostat, Quillon, Meridian, Oakfield, Sunspire, Tessera, Vantor"),
    "level": _list("low, moderate, high, severe"),
    "part": _list(
        "gateway, scheduler, indexer, dispatcher, ingest worker, rule engine, cache layer, replicator, notifier, "
        "archiver, session broker, rate limiter, planner, compactor, router"
    ),
    "store": _list("PostgreSQL, Redis, Cassandra, SQLite, RocksDB, DynamoDB, MongoDB, ClickHouse"),
    "queue": _list("Kafka, RabbitMQ, NATS, Pulsar, SQS"),
    "language": _list("Go, Rust, Kotlin, Python, Java, Elixir"),
    "unit": _list("second, minute, hour, day, week"),
    "share": _list("half, a third, two thirds, a quarter, a tenth, most"),
    "item": _list(
        "order, invoice, refund, shipment, customer, product, coupon, payment, ticket, account, contract, device, "
        "voucher, supplier, warehouse, parcel, booking, quote"
    ),
    "field": _list(
        "status, currency, region, channel, owner, reference, note, priority, locale, category, tax_code, due_date, "
        "source, label, amount"
    ),
    "type": _list("string, integer, boolean, number, date, array of strings, UUID"),
    "need": _list("required, optional, read-only, deprecated"),
    "format": _list("JSON, CSV, XML, Parquet, NDJSON"),
    "plant": _list("white clover, red fescue, meadow sage, alpine sedge, wild thyme, bog myrtle, sea aster"),
    "trait": _list("root depth, leaf area, seed mass, stem height, flower count, shoot biomass, leaf nitrogen"),
    "place": _list("the Tyrol, Galicia, the Jura, Skåne, the Carpathians, Brittany, the Pyrenees, Jutland"),
    "season": _list("spring, summer, autumn, winter"),
    "soil": _list("sandy, clay, peaty, chalky, loamy, stony"),
    "model": _list("mixed-effects model, random forest, linear regression, survival model, Bayesian model"),
}

ABSTRACT = """
# Drought tolerance of {plant:white clover} on {soil:sandy} soils in {place:the Tyrol}
Authors: {person:Ingrid} Vester, {person:Pavel} Moreau, {person:Leila} Okafor
Keywords: {plant:white clover}, {trait:root depth}, drought, grassland, field trial
+ Corresponding author: {person:Leila} Okafor
+ Received {date:14 March}, accepted {date:11 June}
+ Study registered on {date:8 January}

## Background
{season:summer} droughts have doubled in length in {place:the Tyrol} since {year:1990}.
{plant:white clover} feeds {share:a third} of the grazing herds and fixes nitrogen in poor soils.
How {trait:root depth} shapes its survival in dry years remains poorly understood.
Earlier trials covered only {n:3} years and were limited to {soil:loamy} soils.
+ Farmers report losses of up to {n:40} % of the sward in dry years.
+ No trial so far has combined shade with drought.
+ Seed banks hold {n:60} accessions that were never tested.
+ Models of grassland yield ignore {trait:stem height} altogether.

## Methods
We grew {n:480} plants from {n:24} populations in open plots near {city:Graz}.
Half of the plots received {n:35} % less rain from {date:5 May} on.
{trait:root depth} and {trait:leaf area} were measured every {n:14} days.
Soil moisture was logged at {n:20} cm depth by {n:64} probes.
Survival was analysed with a {model:mixed-effects model} and checked by resampling.
Seed was collected between {n:900} and {n:2100} m above sea level.
+ Plots were weeded by hand once per {unit:week} and never fertilised.
+ Two observers scored each plant without knowing the treatment.
Leaves were dried at {n:70} °C before weighing.
+ Missing values ({n:3} %) were left out of the analysis.

## Results
Drought lowered survival from {n:91} % to {n:68} % over two growing seasons.
Populations with deep roots lost only {n:9} % of their plants in the driest year.
{trait:leaf area} fell by {n:22} ± {n:4} % in the dry plots and recovered in {season:spring}.
Plants on {soil:stony} patches flowered {n:11} days earlier than their neighbours.
The effect was strongest in late {season:autumn}, when the topsoil was driest.
+ Shade reduced the loss by {share:half} on {soil:clay} soils, but not elsewhere.
+ No difference between observers was found (p = 0.{n:62}).
+ {trait:seed mass} did not respond to the treatment in any of the years.
+ The {model:random forest} ranked soil moisture first.

## Conclusions
{trait:root depth} predicts drought survival better than {trait:leaf area} does.
Breeders should select for it well before the next {n:10} years of warming.
Our plots will be followed until {season:spring} {year:2031}.
+ A second site near {city:Turin} will open in {season:autumn}.
+ The results do not extend to {plant:red fescue}, which has another root system.
+ Data and code are available from {person:Pavel} Moreau.
+ Funding came from the {vendor:Meridian} foundation.
"""

MEETING = """
# {team:Platform} team sync, {date:11 March}
Facilitator: {person:Dana}
Note taker: {person:Tomás}
Location: {room:Room Cedar} and video call
Attendees: {person:Dana}, {person:Tomás}, {person:Priya}, {person:Jonas}, {person:Helena}
+ Apologies: {person:Marcus}, travelling until {weekday:Thursday}
+ Duration: {n:50} minutes
+ Guest: {person:Amara} from the {team:Support} team

## Review of last week
- {person:Priya} shipped the {feature:invoice export} to {n:14} pilot customers.
- {person:Jonas} closed {n:23} tickets; {n:5} of them came from {city:Lisbon}.
- The {feature:login page} was down for {n:18} minutes on {weekday:Tuesday}, at lunch time.
- {team:Search} took over the on-call phone from us for the rest of the month.
- The new {feature:help centre} answers {n:70} % of the questions without a ticket.
- {person:Helena} finished the survey of {n:40} users and shared the results.
+ - The {vendor:Halcyon} contract was renewed for {n:2} years with the same terms.
+ - Nobody had time to clean up the {feature:audit log}.
+ - {person:Marcus} gave a talk in {city:Turin}.

## Decisions
- We postpone the {feature:price table} until {date:8 May} and tell {team:Growth} today.
- {vendor:Northwind} stays our hosting partner for {n:12} more months at the old price.
- New hires shadow the {team:Support} team for {n:3} days in their first month.
- The {feature:audit log} keeps entries for {n:90} days instead of forever.
+ - Code freeze starts on {date:20 April} at {time:17:00}.
+ - Every release needs a sign-off from {person:Dana} and one other person.
+ - We stop supporting the old {feature:mobile app} at the end of {season:summer}.
+ - Travel to {city:Ghent} is limited to {n:2} people.

## Budget
We have spent {n:61} % of the yearly budget so far, as planned.
{vendor:Bluepeak} raised its price by {n:8} % and gave no notice.
{person:Helena} asks for {n:4500} euros for new test phones and a label printer.
+ Training costs in {city:Leeds} came in under plan.
+ {person:Jonas} will compare three offers by {date:11 April} and pick one.
+ The {team:Growth} team pays {share:half} of the licence.
+ Unspent money moves to the {feature:help centre} at the end of the quarter.

## Customer feedback
{vendor:Sunspire} praised the {feature:search filter} but finds the colours too pale.
{n:17} of {n:25} interviewed customers never opened the {feature:usage dashboard}.
The {city:Porto} office wants the {feature:consent banner} in {n:4} more languages.
Most complaints this month concern the slow {feature:checkout flow} on older phones.
+ {vendor:Tessera} asked for a written answer by {date:26 March}.
+ Ratings of the {feature:mobile app} fell from 4.{n:6} to 4.{n:3}.
+ {person:Amara} will read all {n:130} comments this {unit:week}.
+ Two schools in {city:Ghent} would like a discount for {n:35} seats.

## Risks
- The {feature:import wizard} migration carries a {level:high} risk of data loss.
- {vendor:Ferrostat} may miss the delivery of {n:30} racks on {date:23 April}.
- Only {person:Tomás} knows how the {feature:report builder} works inside.
+ - A strike in {city:Nantes} could delay the hardware by up to {n:9} days.
+ - Load on the {feature:search filter} grows {n:15} % per {unit:week}.
+ - The backup site has little capacity left and a {level:moderate} error rate.
+ - Two key people leave before {date:29 June}.

## Action items
- {person:Dana}: send the release plan to {team:Billing} and {team:Mobile} by {weekday:Wednesday}.
- {person:Tomás}: document the {feature:report builder} in {n:4} pages, with pictures.
- {person:Priya}: call {vendor:Ferrostat} about the late delivery and report back.
- {person:Jonas}: order {n:6} test phones from {vendor:Quillon} once the budget is approved.
- {person:Helena}: book {room:the library} for the workshop with {team:Research}.
- {team:Mobile}: translate the {feature:consent banner} for the {city:Porto} office.
+ - {person:Marcus}: rotate the keys of the {feature:admin panel} before {date:2 May}.
+ - {person:Amara}: draft an apology to the {city:Lisbon} office.
+ - {person:Ingrid}: measure page load before {date:17 May}.
+ - {person:Kofi}: invite {team:Research} to the demo on {weekday:Friday} afternoon.

## Next meeting
{weekday:Thursday} at {time:10:30} in {room:Room Maple}.
{person:Priya} brings the figures for the {feature:usage dashboard} and a first draft.
+ {person:Jonas} prepares a short demo of the {feature:checkout flow}.
+ Please add topics before {time:09:00} on {weekday:Monday}.
+ {person:Helena} takes the notes next time, {person:Kofi} after that.
+ Lunch is ordered for {n:12} people.
+ {person:Kofi} joins from {city:Porto}.
"""

API = """
# The {item:order}s API, version {n:2}.{n:4}
Base URL: https://api.{vendor:Northwind}.example/v{n:2}
Maintained by the {team:Logistics} team
Last change: {date:17 September}
+ Status page: https://status.{vendor:Northwind}.example
+ Support: {person:Amara}, weekdays from {time:09:00} to {time:17:00}
+ Sandbox: keys starting with test_{n:42}

## Authentication
Send the key in the X-{team:Identity}-Key header of every call.
Keys expire after {n:90} days and can be renewed {n:2} times.
A missing key gives 401, a revoked key gives 403.
Keys are tied to one {field:region} and cannot be moved to another.
+ Clients in {city:Utrecht} and {city:Ghent} use the European host.
The key decides which {item:account} is charged for a call.
+ Rotate keys at least once per {unit:week}.
+ Tokens for {item:device}s last {n:30} minutes.
Never send the key as a query parameter, because addresses are logged.

## Rate limits
Each key may send {n:600} calls per {unit:minute}.
Bursts of up to {n:50} calls are allowed, if the minute stays below the limit.
Above the limit the API answers 429 with a Retry-After header in seconds.
+ Bulk calls count as {n:10} single calls, whatever their size.
+ Limits are reset every {unit:hour} on the full {unit:hour}.
+ Ask {person:Kofi} for a higher limit at least {n:5} days ahead.
+ The sandbox has {share:a tenth} of these limits.

## List {item:order}s
GET /{item:order}s
Returns the newest {item:order}s first, {n:25} per page, with a cursor to the next page.
| parameter | type | use |
| {field:status} | {type:string} | {need:optional}, filters by {field:status} |
| {field:region} | {type:string} | {need:optional}, two-letter code |
| limit | integer | {need:optional}, at most {n:200} |
| cursor | {type:string} | {need:optional}, taken from the previous page |
Results are cached for {n:30} seconds, so a new {item:order} may be missing.
+ | since | {type:date} | {need:optional}, earliest creation {unit:day} |
+ | {field:channel} | {type:string} | {need:optional}, web or shop |
+ | {field:owner} | {type:UUID} | {need:optional}, defaults to the caller |
The total count is left out because it is slow.
+ Sorting by {field:amount} is not supported, use the {format:CSV} export instead.

## Create one {item:order}
POST /{item:order}s
| field | type | use |
| {field:reference} | {type:string} | {need:required}, up to {n:64} characters |
| {field:amount} | {type:integer} | {need:required}, in cents |
| {field:currency} | {type:string} | {need:required}, three letters |
| {field:note} | {type:string} | {need:optional}, shown to the {item:customer} |
Answers 201 with the new {item:order}, its id and the time of creation.
A repeated {field:reference} within {n:24} hours gives 409.
+ | {field:priority} | {type:integer} | {need:optional}, from 1 to {n:5} |
+ | {field:label} | {type:array of strings} | {need:optional}, at most {n:12} |
+ | {field:tax_code} | {type:string} | {need:deprecated}, ignored since {date:8 May} |
+ Drafts are deleted after {n:14} days unless they are confirmed.

## Update one {item:order}
PATCH /{item:order}s/{id}
Only the fields in the body are changed; all others keep their value.
Send the ETag of your copy in the If-Match header.
An update of a closed {item:order} is refused with 409.
At most {n:20} updates per {unit:minute} are accepted per {item:order}.
+ The {field:currency} cannot be changed after the first {item:payment}.
+ Setting a field to null clears it, unless the field is {need:required}.
+ Every update is kept in the history for {n:5} years.
The answer holds the whole {item:order} as it is after the update.
+ Bulk updates take up to {n:100} objects in {format:NDJSON}.

## Read one {item:order}
GET /{item:order}s/{id}
Returns the {item:order} with its {item:payment}s and {item:shipment}s.
Archived {item:order}s are served for {n:18} months, after that the answer is 410.
The expand parameter accepts at most {n:3} names, separated by commas.
+ The ETag header changes with every update of the {item:order} or its {item:payment}s.
+ Amounts are rounded to {n:2} digits.
Set the fields parameter to receive only the named parts, such as {field:status}.
+ Fields that are empty are left out of the answer.
+ {format:CSV} is returned when the Accept header asks for it.

## Cancel one {item:order}
DELETE /{item:order}s/{id}
Only {item:order}s younger than {n:60} minutes can be cancelled without a fee.
The {item:customer} is told by mail within {n:5} minutes.
Cancelling twice has no further effect and gives 204, as the first time.
+ The {field:reference} cannot be used again for {n:24} hours afterwards.
+ The {item:refund} is created automatically and takes up to {n:5} days.
+ Cancelled {item:order}s stay visible to {team:Support} for {n:12} months.
+ Partial cancelling arrives in version {n:3}.

## Errors
Errors are {format:JSON} objects with code, message and trace_id.
400: a field is missing, unknown or has the wrong type.
404: the {item:order} does not exist or is hidden from this key.
409: the {item:order} was changed by someone else since it was read.
503: maintenance, announced by mail {n:48} hours ahead.
+ 402: the {item:account} has an unpaid {item:invoice}.
+ 413: the body is larger than {n:512} kB.
+ 422: the {field:currency} is not enabled for the {field:region}.
+ Please quote the trace_id when you write to {team:Support}.

## Webhooks
Events are posted as {format:JSON} to one address per {item:account}, over TLS only.
Delivery is tried {n:8} times over {n:36} hours, with growing pauses.
Answer with 200 within {n:10} seconds or the event is sent again.
The address can be changed by {team:Support} or in the {feature:admin panel}.
+ Events older than {n:7} days are dropped.
+ Each event carries a signature made with SHA-256.
+ The order of events is not guaranteed, so compare their time stamps.
+ Test events come from {city:Ghent} only.
"""

DESIGN = """
# Design: {part:dispatcher} for the {team:Logistics} platform
Author: {person:Rafael}
Reviewers: {person:Signe}, {person:Noor} and {person:Elliot}
Status: approved by {person:Freya} on {date:20 February}
+ Target release: {date:14 June}
+ Tracking: {team:Logistics} board, card {n:318}
+ Replaces the {part:planner} design of {year:2019}

## Context
The current {part:scheduler} was written for {n:40} warehouses and now serves {n:260}.
Jobs wait {n:12} minutes on average before a driver sees them.
{share:half} of the delays start in the nightly batch run, which takes {n:95} minutes.
Operators restart the {part:scheduler} by hand about {n:3} times per {unit:week}.
The {team:Support} team counts {n:85} complaints a month about late routes.
+ Three earlier attempts to tune the batch run failed for lack of test data.
+ The {city:Gothenburg} site runs its own copy with local changes.
+ {vendor:Halcyon} ends support for the old version in {year:2027}.
+ A survey of {n:120} drivers put waiting first among {n:14} complaints.
+ Traffic has grown by {n:7} % a month since {date:5 March}.

## Goals
- Assign every new job to a driver within {n:20} seconds.
- Survive the loss of one data centre without losing or doubling jobs.
- Let operators change routing rules without a release.
- Keep the monthly hosting cost below {n:9000} euros, backups included.
+ - Explain every assignment to the operator in one plain sentence.
+ - Support {n:500} warehouses with the same hardware.
+ - Finish the migration of all sites before {date:17 November}.
+ - Give {team:Research} access to anonymous history.

## Non-goals
- Route optimisation stays in the {part:planner}.
- Drivers keep the {feature:mobile app} they have today.
- We do not replace {store:PostgreSQL} as the system of record.
+ - Billing for cancelled jobs is left to {team:Billing}.
+ - Offline work is out of scope for version {n:1}.
+ - The {feature:admin panel} keeps its look and its present address.
+ - No support for third-party fleets this {season:winter}.

## Architecture
Jobs enter through the {part:gateway}, which checks them and writes them to {queue:Kafka}.
The {part:dispatcher} reads from {queue:Kafka} and keeps open jobs in {store:Redis}.
The {part:rule engine} scores every free driver for every open job in the same area.
The best pair is written to {store:PostgreSQL} in one transaction.
The {part:notifier} then pushes the job to the driver and waits for an answer.
All parts are written in {language:Go} and share one client library, kept by {team:Platform}.
Each part runs as {n:3} replicas behind the {part:router} in two data centres.
+ The {part:archiver} moves finished jobs to cold storage every {unit:hour}.
+ Configuration is read from {store:SQLite} at start-up and never written back.
+ The {part:cache layer} holds driver positions for {n:45} seconds.
+ A prototype in {language:Python} reached {n:300} jobs a second.

## Data model
| table | key | size |
| job | job_id | about {n:4} million rows per {unit:week} |
| driver | driver_id | {n:18000} rows, updated every {n:15} seconds |
| assignment | job_id, attempt | {n:1.2} rows per job |
| rule | rule_id, version | fewer than {n:400} rows |
Rows of closed jobs are deleted after {n:30} days.
+ | depot | depot_id | {n:260} rows, changed once per {unit:week} |
+ | audit | event_id | kept for {n:7} years |
+ Times are stored in UTC with microseconds and shown in local time.
+ Text columns hold at most {n:2000} characters.

## Assignment loop
1. Read up to {n:200} open jobs, oldest first.
2. Ask the {part:rule engine} for the {n:5} best drivers of each job.
3. Drop drivers who refused a job in the last {n:10} minutes.
4. Solve the matching with the auction algorithm.
5. Write the result and release the lock.
The loop runs every {n:2} seconds and stops when the lock is lost.
A job that fails {n:4} times goes to an operator, who assigns it by hand.
+ A dry run writes its result to the log only and leaves the lock alone.
+ Jobs with {level:high} priority skip the second step.
+ Ties are broken by the distance to the depot.
+ The lock expires after {n:25} seconds, and another replica takes over.

## Failure handling
If {store:Redis} is lost, open jobs are rebuilt from {queue:Kafka} in {n:90} seconds.
If {queue:Kafka} is lost, the {part:gateway} buffers jobs on disk for {n:6} hours.
If the {part:rule engine} is slow, the last known scores are used for up to {n:30} seconds.
+ Duplicate assignments are caught by the key of the assignment table and logged.
+ If the {part:notifier} fails, drivers poll once per {unit:minute}.
+ A full disk stops the {part:archiver} and nothing else.
+ The standby site in {city:Tampere} takes over after {n:3} minutes.
+ Every failure is rehearsed once each {season:spring} with {team:Support}.

## Security
Drivers see only the jobs of their own depot, never those of others.
The {part:gateway} signs each job, and the {part:notifier} checks the signature.
Secrets are rotated every {n:60} days by the {team:Security} team without a restart.
+ Phone numbers are masked in every log and in every export.
+ {person:Hassan} reviews access rights each {unit:week}.
+ Support staff need a second factor from {date:11 May} on.
+ Position data older than {n:48} hours is erased.

## Capacity
We expect {n:1400} jobs a second at the {season:winter} peak.
One replica handled {n:900} jobs a second in the load test.
Memory grows by {n:2} kB per open job, so {n:16} GB are enough.
The {queue:Kafka} topic needs {n:24} partitions to keep {n:12} readers busy.
+ Doubling the number of drivers adds {n:6} replicas and no new hardware.
+ Network traffic stays below {n:80} Mbit per second.
+ The load test ran for {n:72} hours on {vendor:Oakfield} machines.
+ {store:PostgreSQL} used {share:a quarter} of its write budget.
+ Start-up takes {n:40} seconds with a warm cache and twice that without.

## Monitoring
Each part exports counters that are scraped every {n:15} seconds.
An alarm is raised when the queue holds more than {n:5000} jobs for {n:5} minutes.
Operators see the age of the oldest open job on one screen.
Traces are sampled at {n:2} % and kept for {n:14} days.
The on-call phone rotates between {team:Logistics} and {team:Platform} every {unit:week}.
+ Dashboards are generated from code and reviewed like code.
+ {person:Tamsin} checks the alarms with {team:Support} once a month.
+ A silent {part:notifier} is reported after {n:60} seconds.
+ Logs are shipped to {store:ClickHouse} in batches.

## Testing
A simulator replays {n:90} days of real jobs from {city:Gothenburg}.
It must never show a driver with more than {n:9} jobs at once.
Faults are injected into {queue:Kafka} and {store:Redis} in every nightly run.
The matching is compared with an exact solver on {n:250} small cases.
+ Each bug found in production becomes a replay case.
+ {person:Umar} owns the simulator and its data.
+ A full run takes {n:35} minutes on {n:8} cores.
A release is held back when the simulator finds {n:3} late jobs in {n:1000}.
+ Tests that fail twice within one {unit:week} are reported to {team:Platform}.

## Roll-out
- {date:8 April}: shadow mode in {city:Krakow}, no effect on drivers.
- {date:29 April}: live in {city:Krakow} and {city:Leeds}.
- {date:20 May}: live in all sites, the batch run stays as a fallback.
- {date:23 July}: the batch run is switched off.
{person:Signe} decides on each step together with the {team:Support} team, two days ahead.
+ - {date:17 June}: training for operators in {city:Bilbao}.
+ - {date:2 September}: review with {vendor:Meridian}.
+ A step is undone when more than {n:2} % of jobs are late.
+ {person:Noor} writes the operator handbook and keeps it up to date.

## Alternatives
Tuning the batch run was rejected: it cannot go below {n:5} minutes.
Buying {vendor:Tessera} was rejected for its price of {n:30000} euros a year.
A central solver in {language:Java} was fast, but one crash stopped all sites.
Keeping two schedulers side by side would double the work of {team:Support}.
+ Using {store:Cassandra} for open jobs made the matching too slow.
+ {queue:RabbitMQ} lost messages in {n:2} of {n:50} tests.
+ A market where drivers bid was disliked by {share:most} drivers.
+ Doing nothing costs about {n:700} working hours a year at {n:30} sites.

## Open questions
- Who owns the rules once {person:Rafael} moves to {team:Research}?
- Do we need a second {part:router} in {city:Turin}?
- Can the {part:compactor} run on the same machines?
+ - How long may a driver stay silent before being skipped?
+ - Is {n:4} the right number of attempts for jobs at night?
+ - Should {person:Elliot} sign off changes to the rules?
+ - Which metrics does {vendor:Vantor} expect from us?
"""

# Smallest first: when the cases do not divide by four, the shorter documents get one more, which keeps the median of
# the gold sizes at the second document, near the paper's 500 tokens.
SOURCES: dict[str, str] = {
    "scientific abstract": ABSTRACT,
    "meeting notes": MEETING,
    "API spec": API,
    "technical design": DESIGN,
}
