mod cache;
mod cached_latent;
mod latent;
mod scores;
