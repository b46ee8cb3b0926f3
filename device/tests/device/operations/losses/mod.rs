mod embedding;
mod loss;
mod pair_loss;
