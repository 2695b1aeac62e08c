//! The loop against agents and clients of its own making.
