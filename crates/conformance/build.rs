//! Builds the attacker; `attacker_image.rs` embeds it.

fn main() {
    saggar_embed::Program { name: "attacker", variable: "SAGGAR_ATTACKER_IMAGE", features: &[] }.build();
}
