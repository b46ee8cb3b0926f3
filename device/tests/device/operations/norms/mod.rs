mod head_norm;
mod joint_norm;
mod norm;
