//! Power cuts at every numbered operation of a script, with every ending that the device knows.
