"""What each event in the life of a container changes: creation, start, resize, end.

Owns the order of the steps in an event, and the decision that results. The steps themselves are in
the rooms below. It must not know how requests arrive or answers leave, nor other events: `engine`
calls one function for each.
"""
