"""Lightning's Trainer around a compiled module: validation, gradient clipping, a checkpoint, a last partial batch."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))

    def training_step(self, batch, index):
        rows, wanted = batch
        loss = F.cross_entropy(self.net(rows), wanted)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        rows, wanted = batch
        self.log("val_loss", F.cross_entropy(self.net(rows), wanted))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.seed_everything(0)
data = TensorDataset(torch.randn(26, 16), torch.randint(0, 4, (26,)))
model = Classifier()
model.net = torch.compile(model.net, backend=os.environ.get("BACKEND", "inductor"))
trainer = L.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=1,
    gradient_clip_val=1.0,
    accumulate_grad_batches=2,
    default_root_dir="logs",
    logger=True,
    callbacks=[ModelCheckpoint(monitor="val_loss")],
    log_every_n_steps=1,
)
trainer.fit(model, DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8))
print(trainer.checkpoint_callback.best_model_path)
