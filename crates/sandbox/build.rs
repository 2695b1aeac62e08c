//! Builds the guest agent; `guest_image.rs` embeds it.

fn main() {
    saggar_embed::Program { name: "guest", variable: "SAGGAR_GUEST_IMAGE", features: &["mutation"] }.build();
}
