//! The model gateway: one way to models of many providers, for clients, runs and sandboxes.
//!
//! ```text
//!  client's wire ──▶ ask ──▶ limits, budget ──▶ route: targets, keys, breakers ──▶ provider's wire
//!                                 ▲                                                    │
//!        client's stream ◀── tell ┼──────────── events of one form ◀── stream ◀────────┘
//!                               bill
//! ```
//! A client whose wire is the provider's own gets what the provider sent, unknown fields included; all others get a translation, and a
//! request that can't be translated is refused.
//!
//! Knows no SQL and keeps no secret: [`World`] resolves a key for each call and stores what was spent.
//!
//! INVARIANT: every call that a provider may bill is settled once, whoever leaves in the middle.

#![forbid(unsafe_code)]

mod answer;
mod attempt;
mod breaker;
mod cache;
pub mod catalogue;
mod choose;
mod count;
mod failure;
mod fields;
mod gateway;
mod local;
mod pool;
mod prepare;
mod rate;
mod reading;
mod reply;
mod run_call;
mod sse;
mod stream;
mod under_way;
mod wire;
mod world;

pub use answer::{Answer, Ask};
pub use catalogue::{Catalogue, CatalogueError};
pub use failure::{Failure, FailureKind};
pub use gateway::{Gateway, WeakGateway};
pub use run_call::Streamed;
pub use wire::ClientWire;
pub use world::{
    Bill, BoxFuture, Caller, ProviderKey, Reservation, ReserveError, Reserved, SpendingLimit, WayOut, World,
};
