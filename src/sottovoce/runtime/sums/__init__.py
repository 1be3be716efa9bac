"""Add up over parties so that everybody learns the total and nobody learns a party's own sum.

Example: five hospitals hold 3, 1, 4, 1 and 5. Each adds its share of the noise and masks that cancel between pairs, and
sends a number that looks random to one of them, the *adder*. The adder adds the five up: what is left is 14 and the
noise.

`keys` makes secrets of pairs, and a fresh key for each question. `roster` says who takes part. `session` masks, and
checks totals. `talk` sends the messages.

**Guarantee.** Assume that parties follow the protocol, that X25519, SHA-256 and ChaCha20 are secure, and that cards
reach the others over authenticated lines (the TLS from site to site, by pinned certificates). Then whoever sees all
messages of a session, and all that some parties know, learns of the others what these parties' total tells, for each
question, and nothing else.

**Proof.** A *mask* of a pair is the stream of ChaCha20, from counter 0, by a key that HKDF makes of the pair's secret
and of everything that the question is about (`session.Question`, `roster.Roster`): the members' fresh nonces, the
step, the place in the program, and all earlier totals among them. Two questions that differ in any of this have
different keys, so all masks of two honest members are one pseudorandom function at different points. Replace them by
uniform numbers: nobody who can compute tells the difference. Let H be the honest members. Among the messages of H each
mask occurs once with plus and once with minus. Let i be one of H and j any other: the mask of (i, j) is uniform and
independent of all other masks, so the messages of all of H but one are independent uniform numbers modulo 2^64,
and the last one is the sum over H minus them, plus masks that the others know. So the messages can be made from the sum
over H alone. This holds for each question by itself, hence for all: whatever is computed from messages of several
questions, such as differences, can be computed from the sums over H.

**Nothing is said twice with other noise.** Two messages with one mask would give their difference away. A member's
coins and noise are a stream, too, by a key of its own secret and the same facts (`Session.source`). So a question that
is asked again, in a process that was killed or in a folder that was put back, gets the same coins, the same noise and
the same mask: the same bytes. A member whose folder is gone has new secrets and a new nonce, which is another session:
the others refuse to go on with it.

**Erasure.** After each total a member replaces its secrets by HKDF of them and of the total. So what somebody finds in
a member later tells nothing of earlier masks and noise.
"""
